//! The registry of task kinds and operations: generates [`crate::tasks::Params`], [`crate::NodeOp`],
//! [`crate::op::GpuTask`] and [`crate::tasks::KINDS`] from one line for each.
//!
//! `gpu` kinds become members of the one desired state of the GPUs. `node` kinds are sent to the node as they are.
//! `here` kinds are executed by the controller. `hardware` lists kinds besides `gpu` kinds that have facts of the hardware, `ground` those that
//! have facts of the operating system, and `beside` those of them that stand beside the GPUs. `operations` belong to no kind of their name.

macro_rules! registry {
    (
        kinds {
            $($(gpu $gpu:ident)? $(node $node:ident($sent:ty))? $(here $here:ident)?;)*
        }
        hardware { $($hardware:ident),* }
        ground { $($ground:ident),* }
        beside { $($beside:ident),* }
        operations {
            $($(#[$doc:meta])* $other:ident($other_sent:ty);)*
        }
    ) => {
        /// The parameters of any kind.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Params {
            Gpu(GpuTask),
            Node(NodeOp),
            $($($here($here),)?)*
        }

        /// Parameters of one GPU task.
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case", tag = "kind", content = "with")]
        pub enum GpuTask {
            $($($gpu($gpu),)?)*
        }

        /// One operation on a node.
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case", tag = "op", content = "with")]
        pub enum NodeOp {
            $($($node($sent),)?)*
            $($(#[$doc])* $other($other_sent),)*
        }

        impl NodeOp {
            /// Returns the operation's implementation.
            pub fn operation(&self) -> &dyn $crate::operation::Operation {
                match self {
                    $($(Self::$node(task) => std::borrow::Borrow::<$node>::borrow(task),)?)*
                    $(Self::$other(asked) => asked,)*
                }
            }

            /// As [`Self::operation`], for changes.
            pub fn operation_mut(&mut self) -> &mut dyn $crate::operation::Operation {
                match self {
                    $($(Self::$node(task) => std::borrow::BorrowMut::<$node>::borrow_mut(task),)?)*
                    $(Self::$other(asked) => asked,)*
                }
            }
        }

        impl GpuTask {
            /// Returns the kind's name in playbooks.
            pub const fn kind(&self) -> &'static str {
                match self { $($(Self::$gpu(_) => <$gpu as Kind>::INFO.name,)?)* }
            }

            /// Whether a newer task declares everything that this one does.
            pub fn gives_way(&self, newer: &Self) -> bool {
                match (self, newer) {
                    $($((Self::$gpu(old), Self::$gpu(new)) => old.gives_way(new),)?)*
                    _ => false,
                }
            }
        }

        $(
            $(impl From<$gpu> for Params {
                fn from(task: $gpu) -> Self {
                    Self::Gpu(GpuTask::$gpu(task))
                }
            })?
            $(impl From<$node> for Params {
                fn from(task: $node) -> Self {
                    Self::Node(NodeOp::$node(task.into()))
                }
            })?
            $(impl From<$here> for Params {
                fn from(task: $here) -> Self {
                    Self::$here(task)
                }
            })?
        )*

        /// The hardware facts of the kinds that declare the state of GPUs, by their names.
        pub static HARDWARE: &[(&str, $crate::tasks::Hardware)] = &[
            $($((<$gpu as Kind>::INFO.name, <$gpu as $crate::tasks::GpuKind>::HARDWARE),)?)*
            $((<$hardware as Kind>::INFO.name, <$hardware as $crate::tasks::GpuKind>::HARDWARE),)*
        ];

        /// The facts of the kinds that tune the operating system, by their names.
        pub static GROUND: &[(&str, $crate::tasks::Ground)] =
            &[$((<$ground as Kind>::INFO.name, <$ground as $crate::tasks::GroundKind>::GROUND),)*];

        /// What lasts of the kinds that stand beside the GPUs, by their names.
        pub static BESIDE: &[(&str, $crate::tasks::Beside)] =
            &[$((<$beside as Kind>::INFO.name, <$beside as $crate::tasks::BesideKind>::BESIDE),)*];

        /// All kinds, in the order of the reference.
        pub static KINDS: &[KindInfo] =
            &[$($(<$gpu as Kind>::INFO)? $(<$node as Kind>::INFO)? $(<$here as Kind>::INFO)?),*];
    };
}
pub(crate) use registry;
