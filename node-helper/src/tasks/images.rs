//! `initramfs`: the image of each installed kernel is there, and not older than what it is made from.

use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};

use gpufleet_protocol::{Change, Disruption, Property, Subject, tasks::Initramfs};
use serde_json::{Map, Value, json};

use super::initramfs::{self, Images, put};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::files,
    world::{Content, Effect, Entry, Owned},
};

/// What images are made from, by all builders: a build too much does no harm.
const INPUTS: [&str; 11] = [
    "/etc/modprobe.d",
    "/etc/modules-load.d",
    "/etc/udev/rules.d",
    "/etc/systemd/network",
    "/etc/crypttab",
    "/etc/initramfs-tools",
    "/etc/dracut.conf",
    "/etc/dracut.conf.d",
    "/etc/mkinitcpio.conf",
    "/etc/mkinitcpio.conf.d",
    "/etc/mkinitcpio.d",
];
/// Most files that are looked at, and folders below each other.
const FILES: usize = 4096;
const DEPTH: usize = 6;
/// Where a prediction keeps what the images were made from.
const NOTED: &str = "initramfs made from ";

/// One file or folder that images are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Input {
    path: PathBuf,
    /// When it was put there; `None` if it is only assumed.
    time: Option<SystemTime>,
}

#[derive(Debug)]
pub struct State {
    images: Images,
    inputs: Vec<Input>,
    /// The inputs as one value.
    signature: String,
    /// The inputs of the images that an earlier task of this prediction builds.
    assumed: Option<String>,
    builder: Option<PathBuf>,
    /// The path of each missing image.
    places: Vec<PathBuf>,
}

#[derive(Debug)]
pub enum Step {
    /// Makes the missing image of a kernel.
    Make(String),
    BuildAll,
}

fn collect(node: &Node<'_>, path: &Path, depth: usize, found: &mut Vec<Input>) -> Result<(), Trouble> {
    let too_many = || {
        Trouble::io(format!("more than {FILES} files, or folders {DEPTH} deep, are at {}", path.display()))
    };
    let (place, entry) = node.world.follow(path)?;
    match entry {
        Entry::Absent | Entry::Other { .. } | Entry::Link { .. } => return Ok(()),
        Entry::Directory { .. } => {
            if depth == DEPTH {
                return Err(too_many());
            }
            // Its own time too, for files that are gone.
            found.push(Input { path: path.to_owned(), time: put(&place) });
            for name in node.world.names(&place)? {
                collect(node, &path.join(name), depth + 1, found)?;
            }
        }
        Entry::File { content: Content::On(on), .. } => {
            found.push(Input { path: path.to_owned(), time: put(&on) });
        }
        Entry::File { .. } => found.push(Input { path: path.to_owned(), time: None }),
    }
    if found.len() > FILES { Err(too_many()) } else { Ok(()) }
}

impl State {
    /// Returns the input that makes an image stale.
    fn newer(&self, built: Option<SystemTime>) -> Option<&Input> {
        match built {
            Some(built) => self.inputs.iter().find(|input| input.time.is_none_or(|time| time > built)),
            // Built by an earlier task of this prediction, perhaps before one that changes an input.
            None if self.assumed.as_ref().is_none_or(|made| *made == self.signature) => None,
            None => self.inputs.iter().find(|input| input.time.is_none()).or(self.inputs.first()),
        }
    }
}

impl NodeKind for Initramfs {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let images = Images::read(node)?;
        let mut inputs = Vec::new();
        for path in INPUTS.into_iter().chain(self.inputs.iter().map(String::as_str)) {
            collect(node, &node.roots.path(path), 0, &mut inputs)?;
        }
        let mut all = String::new();
        for input in &inputs {
            let content = match input.time {
                Some(_) => String::new(),
                None => node
                    .world
                    .read(&input.path)
                    .ok()
                    .flatten()
                    .map(|bytes| files::sha256(&bytes))
                    .unwrap_or_default(),
            };
            all.push_str(&format!("{}:{:?}:{content}\n", input.path.display(), input.time));
        }
        let assumed = node.world.noted(NOTED).into_iter().next().map(|(_, value)| value);
        let builder = initramfs::builder(node);
        let places = images.lacking.iter().map(|release| images.place(node, release)).collect();
        Ok(State { images, inputs, signature: files::sha256(all.as_bytes()), assumed, builder, places })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let Images { present, lacking, apart } = &state.images;
        if let (true, true, Some((image, command))) = (present.is_empty(), lacking.is_empty(), apart.first())
        {
            return Err(Trouble::NotApplicable(format!(
                "{} is an image of kernel-install, which gpufleet does not build: `{command}` does",
                image.display()
            )));
        }
        if present.is_empty() && lacking.is_empty() {
            return Err(Trouble::NotApplicable(
                "there is no kernel with an initramfs in /boot, as in containers and where images lie elsewhere".to_owned(),
            ));
        }
        let mut plan = Plan::default();
        let change = |path: &Path, from: String| {
            let image = Subject::file(path.display().to_string());
            Change::new(image, Property::STATE, from, "built", Disruption::Live)
        };
        for (release, place) in lacking.iter().zip(&state.places) {
            plan.push(Step::Make(release.clone()), change(place, "missing".to_owned()));
        }
        let mut stale = false;
        for (path, built) in present {
            if let Some(input) = state.newer(*built) {
                stale = true;
                plan.changes.push(change(path, format!("older than {}", input.path.display())));
            }
        }
        if stale {
            plan.steps.push(Step::BuildAll);
        }
        if !plan.steps.is_empty() && state.builder.is_none() {
            return Err(Trouble::missing(
                "neither update-initramfs nor dracut nor mkinitcpio is on this node",
            ));
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        if plan.steps.is_empty() {
            return Vec::new();
        }
        let builds_all = plan.steps.iter().any(|step| matches!(step, Step::BuildAll));
        let built = state.images.present.iter().map(|(path, _)| path).filter(|_| builds_all);
        let entry = Entry::File {
            owned: Owned { uid: 0, gid: 0, mode: 0o600 },
            content: Content::Digest { sha256: String::new(), size: 0 },
        };
        let image = |path: &PathBuf| Effect::Path { path: path.clone(), entry: entry.clone() };
        let noted = Effect::Noted { name: NOTED.to_owned(), value: state.signature.clone() };
        built.chain(&state.places).map(image).chain([noted]).collect()
    }

    fn apply(&self, node: &Node<'_>, _: &State, plan: &Plan<Step>) -> Result<Map<String, Value>, Trouble> {
        for step in &plan.steps {
            match step {
                Step::Make(release) => initramfs::build(node, Some(release))?,
                Step::BuildAll => initramfs::build(node, None)?,
            }
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let images: Vec<String> =
            state.images.present.iter().map(|(path, _)| path.display().to_string()).collect();
        [("images".to_owned(), json!(images))].into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::{Bench, changed, failure, shown};

    fn task(value: Value) -> Initramfs {
        serde_json::from_value(value).unwrap()
    }

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.write("etc/modprobe.d/a.conf", "options nvme poll_queues=4\n");
        for release in ["6.1.0-9", "6.1.0-13"] {
            bench.write(&format!("lib/modules/{release}/modules.builtin"), "");
            bench.write(&format!("boot/vmlinuz-{release}"), "kernel\n");
            bench.write(&format!("boot/initrd.img-{release}"), "image\n");
        }
        // As update-initramfs: `-c -k RELEASE` makes one, `-u -k all` builds those that are there.
        bench.script(
            "usr/sbin/update-initramfs",
            "#!/bin/sh\nd=$(dirname \"$0\")/../..\necho $@ >>$d/log\n\
             if [ $1 = -c ]; then echo new >$d/boot/initrd.img-$3; else for i in $d/boot/initrd.img-*; do echo new >$i; done; fi\n",
        );
        bench
    }

    fn age(bench: &Bench, below: &str) {
        let then = SystemTime::now() - Duration::from_secs(3600);
        fs::File::options().write(true).open(bench.path(below)).unwrap().set_modified(then).unwrap();
    }

    #[test]
    fn images_that_are_older_than_their_files_are_built_once() {
        let bench = bench();
        assert_eq!(bench.run(&task(json!({})), Mode::Apply).status, OpStatus::Ok);
        age(&bench, "boot/initrd.img-6.1.0-9");
        let before = bench.snapshot();
        let predicted = bench.run(&task(json!({})), Mode::Predict);
        assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
        assert_eq!(bench.run(&task(json!({})), Mode::Predict).status, OpStatus::Ok);
        let done = bench.run(&task(json!({})), Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        assert_eq!(done.changes.len(), 1);
        assert!(shown(&done)[0].contains("initrd.img-6.1.0-9: older than "), "{done:?}");
        assert_eq!(bench.read("log"), "-u -k all\n");
        assert_eq!(bench.run(&task(json!({})), Mode::Apply).status, OpStatus::Ok);
        // The kernel's times of files have ticks of a few milliseconds.
        std::thread::sleep(Duration::from_millis(50));
        bench.write("srv/key", "x\n");
        assert_eq!(bench.run(&task(json!({"inputs": "/srv/key"})), Mode::Apply).changes.len(), 2);
    }

    #[test]
    fn a_kernel_without_an_image_gets_one() {
        let bench = bench();
        fs::remove_file(bench.path("boot/initrd.img-6.1.0-13")).unwrap();
        let predicted = bench.run(&task(json!({})), Mode::Predict);
        assert_eq!(bench.run(&task(json!({})), Mode::Predict).status, OpStatus::Ok);
        let done = bench.run(&task(json!({})), Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        assert_eq!(bench.read("log"), "-c -k 6.1.0-13\n");
        assert_eq!(bench.run(&task(json!({})), Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn a_prediction_sees_what_changes_between_two_builds() {
        let bench = bench();
        age(&bench, "boot/initrd.img-6.1.0-9");
        assert_eq!(bench.run(&task(json!({})), Mode::Predict).status, OpStatus::Changed);
        let content = Content::Known(b"options nvme x=1\n".as_slice().into());
        let owned = Owned { uid: 0, gid: 0, mode: 0o644 };
        bench.overlay.assume([Effect::Path {
            path: bench.path("etc/modprobe.d/b.conf"),
            entry: Entry::File { owned, content },
        }]);
        assert_eq!(bench.run(&task(json!({})), Mode::Predict).changes.len(), 2);
        assert_eq!(bench.run(&task(json!({})), Mode::Predict).status, OpStatus::Ok);
    }

    #[test]
    fn nodes_without_images_and_without_a_builder_are_told_apart() {
        let bench = bench();
        age(&bench, "boot/initrd.img-6.1.0-9");
        bench.script("usr/sbin/update-initramfs", "#!/bin/sh\necho no space >&2\nexit 1\n");
        assert_eq!(
            failure(&bench.run(&task(json!({})), Mode::Apply)),
            "update-initramfs: exit status 1: no space"
        );
        fs::remove_file(bench.path("usr/sbin/update-initramfs")).unwrap();
        assert!(failure(&bench.run(&task(json!({})), Mode::Apply)).starts_with("neither update-initramfs"));
        let empty = Bench::new().run(&task(json!({})), Mode::Apply);
        assert!(matches!(empty.status, OpStatus::NotApplicable { .. }), "{empty:?}");
    }
}
