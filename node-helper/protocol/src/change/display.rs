//! The words in which people read a change. Made here and nowhere else, so that logs of the helper, screens and
//! reports agree.

use std::fmt;

use super::{Change, CronTable, Layer, MigInstances, MigLayout, Property, Subject, Value};

/// How much of a digest is shown, in characters: enough to see that two differ.
const DIGEST_SHOWN: usize = 12;

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("node"),
            Self::Gpu { index, .. } => write!(f, "GPU {index}"),
            Self::Mps => f.write_str("MPS"),
            Self::KeptState => f.write_str("kept GPU state"),
            Self::File { path } | Self::Line { path } | Self::Block { path, .. } | Self::Mount { path } => {
                f.write_str(path)
            }
            Self::Tree { path } => write!(f, "{path} below"),
            Self::ControllerFile { path } => write!(f, "{path} here"),
            Self::FstabEntry { name, file } => write!(f, "{name} in {file}"),
            Self::CronJob { name, table } => write!(f, "job `{name}` in the {table}"),
            Self::CronVariable { name, table } => write!(f, "{name} in the {table}"),
            Self::Unit { name } | Self::KernelSetting { name } => f.write_str(name),
            Self::ServiceManager => f.write_str("systemd"),
            Self::KernelCommandLine { .. } => f.write_str("kernel command line"),
            Self::Module { name } | Self::PackageModule { name } => write!(f, "module {name}"),
            Self::Package { name } => write!(f, "package {name}"),
            Self::PackageManager => f.write_str("package manager"),
            Self::SigningKey { id } => write!(f, "signing key {id}"),
            Self::User { name } => write!(f, "user {name}"),
            Self::Group { name } => write!(f, "group {name}"),
            Self::KubernetesLabel { key } => write!(f, "label {key}"),
            Self::KubernetesTaint { key, effect } => write!(f, "taint {key}:{effect}"),
            Self::Omitted { count } => write!(f, "and {count} more changes"),
            Self::Described { text } => f.write_str(text),
        }
    }
}

impl fmt::Display for CronTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "crontab of {name}"),
            Self::File(path) => f.write_str(path),
        }
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for MigInstances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.start {
            Some(start) if self.count == 1 => write!(f, "{} at {start}", self.profile),
            Some(start) => write!(f, "{}x {} at {start}", self.count, self.profile),
            None => write!(f, "{}x {}", self.count, self.profile),
        }
    }
}

impl fmt::Display for MigLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.instances.is_empty() {
            f.write_str("none")?;
        }
        for (at, instances) in self.instances.iter().enumerate() {
            let and = if at == 0 { "" } else { " + " };
            write!(f, "{and}{instances}")?;
        }
        match self.without_compute_instance {
            0 => {}
            count => write!(f, " ({count} without compute instance)")?,
        }
        match self.with_partial_compute_instances {
            0 => Ok(()),
            count => write!(f, " ({count} with partial compute instances)"),
        }
    }
}

/// A value by itself. In a change, what there is not and what is secret read as the property wants it: that is
/// [`Change::from_text`] and [`Change::to_text`].
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("absent"),
            Self::Unknown => f.write_str("unknown"),
            Self::Secret => f.write_str("secret"),
            Self::Hidden => f.write_str("(hidden)"),
            Self::Bool { value: true } => f.write_str("enabled"),
            Self::Bool { value: false } => f.write_str("disabled"),
            // Why no unit of days: their properties name it, as in `days of warning`.
            Self::Number { value, unit: None | Some(crate::Unit::Days) } => write!(f, "{value}"),
            Self::Number { value, unit: Some(unit) } => write!(f, "{value} {}", unit.symbol()),
            Self::Range { low, high, unit } => write!(f, "{low}-{high} {}", unit.symbol()),
            Self::Text { value } => f.write_str(value),
            Self::List { values } if values.is_empty() => f.write_str("none"),
            Self::List { values } => f.write_str(&values.join(", ")),
            Self::Digest { algorithm, value, bytes } => {
                let shown = value.get(..DIGEST_SHOWN).unwrap_or(value);
                match bytes {
                    Some(bytes) => write!(f, "{shown} ({bytes} B)"),
                    None => write!(f, "{algorithm} {shown}"),
                }
            }
            Self::MigLayout(layout) => layout.fmt(f),
        }
    }
}

impl Change {
    /// What differs: `GPU 0 power limit`, `vm.swappiness at boot`.
    pub fn what(&self) -> String {
        let property = self.property_text();
        match &self.subject {
            // Why without the subject: `host name` says enough, and so does `package lists`.
            Subject::Node | Subject::PackageManager if !property.is_empty() => property,
            subject if property.is_empty() => subject.to_string(),
            subject => format!("{subject} {property}"),
        }
    }

    /// The same without the GPU, where it is about one: `power limit`.
    pub fn what_of_gpu(&self) -> String {
        match &self.subject {
            Subject::Gpu { .. } => self.property_text(),
            _ => self.what(),
        }
    }

    fn property_text(&self) -> String {
        let name = if self.property.goes_unsaid() { "" } else { self.property.as_str() };
        let text = match self.layer {
            Layer::Live => name.to_owned(),
            Layer::Pending => format!("pending {name}"),
            Layer::Boot => format!("{name} at boot"),
            Layer::Initramfs => format!("{name} in the initramfs"),
        };
        text.trim().to_owned()
    }

    /// The value found; `None` where there was none, or none that is known.
    pub fn from_text(&self) -> Option<String> {
        Some(match &self.from {
            Value::Absent => self.absent(&self.to)?,
            Value::Unknown => return None,
            Value::Secret if self.property == Property::PASSWORD => "another one".to_owned(),
            Value::Secret => "other content".to_owned(),
            value => self.present(value),
        })
    }

    /// The value declared.
    pub fn to_text(&self) -> String {
        match &self.to {
            Value::Absent => match (&self.subject, self.layer) {
                (Subject::KernelSetting { .. }, Layer::Boot) => "not set".to_owned(),
                _ => self.absent(&self.from).unwrap_or_else(|| "absent".to_owned()),
            },
            Value::Secret if self.property == Property::PASSWORD => "the declared one".to_owned(),
            Value::Secret => "secret content".to_owned(),
            value => self.present(value),
        }
    }

    fn present(&self, value: &Value) -> String {
        match (&self.subject, value) {
            (Subject::Mount { .. }, Value::Text { value }) if self.property == Property::SOURCE => {
                format!("{value} mounted")
            }
            _ => value.to_string(),
        }
    }

    /// How people say that there is no value; `None` where they say nothing.
    fn absent(&self, other: &Value) -> Option<String> {
        let text = match &self.subject {
            Subject::Gpu { .. } if self.property.is_clock() => "not locked",
            Subject::KernelCommandLine { .. } => return Some(format!("without {other}")),
            Subject::KeptState => "none",
            Subject::KubernetesLabel { .. } | Subject::KubernetesTaint { .. } => "absent",
            Subject::Module { .. } if self.property == Property::OPTIONS => "none",
            Subject::Mount { .. } if self.property == Property::SOURCE => "not mounted",
            Subject::Unit { .. } if self.layer == Layer::Boot => "without a unit file",
            Subject::User { .. } if self.property == Property::ACCOUNT_ENDS => "never",
            Subject::User { .. } if self.property == Property::HOME_DIRECTORY => "missing",
            Subject::User { .. } if self.property.as_str().contains("days") => "none",
            _ => return None,
        };
        Some(text.to_owned())
    }

    /// From and to in one text, a shared unit written once: `700 -> 600 W`.
    pub fn values(&self) -> String {
        let to = self.to_text();
        match (&self.from, &self.to) {
            (Value::Number { value, unit: Some(unit) }, Value::Number { unit: Some(same), .. })
                if unit == same =>
            {
                format!("{value} -> {to}")
            }
            _ => match self.from_text() {
                Some(from) => format!("{from} -> {to}"),
                None => format!("-> {to}"),
            },
        }
    }
}

/// The whole sentence: `GPU 0 power limit 700 -> 600 W`.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.what(), self.values())
    }
}
