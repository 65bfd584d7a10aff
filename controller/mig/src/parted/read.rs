//! Reads files of mig-parted, with the places of mistakes.

use std::sync::Arc;

use gpufleet_language::{
    diagnostic::{Diagnostic, Diagnostics, SourceFile, Span},
    yaml::{self, Node},
};

use super::{Config, Counts, Devices, Filter, PartedFile, PciId, Spec};

const KEYS: [&str; 2] = ["version", "mig-configs"];
const SPEC_KEYS: [&str; 4] = ["devices", "device-filter", "mig-enabled", "mig-devices"];
const VERSION: &str = "v1";
/// The attributes of profiles: media engines, all of them, graphics. Source: mig-parted, `pkg/types/mig_profile.go`.
const ATTRIBUTES: [&str; 3] = ["me", "me.all", "gfx"];

impl PartedFile {
    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// As [`PartedFile::read`], also where they are no text.
    pub fn of_bytes(name: &str, bytes: &[u8]) -> Result<Self, Diagnostics> {
        Self::read(&yaml::decode(name, bytes)?)
    }

    /// Reads a file of mig-parted, or the one that a ConfigMap of Kubernetes holds.
    ///
    /// # Errors
    /// All mistakes, with their places.
    pub fn read(source: &Arc<SourceFile>) -> Result<Self, Diagnostics> {
        let mut found: Option<Self> = None;
        for document in documents(source) {
            let root = yaml::parse_source(&document)?;
            let file = if is_config_map(&root) {
                match inner(&root, &document)? {
                    Some(inner) => Some(of_root(&yaml::parse_source(&inner)?)?),
                    None => None,
                }
            } else {
                Some(of_root(&root)?)
            };
            match (&found, file) {
                (Some(_), Some(_)) => {
                    let error =
                        "it has the configurations of mig-parted twice, and which one counts is not said";
                    return Err(Diagnostic::error(error).at(&root.span).into());
                }
                (None, Some(file)) => found = Some(file),
                (_, None) => {}
            }
        }
        found.ok_or_else(|| {
            let error = Diagnostic::error(format!("{} has no configurations of mig-parted", source.name()));
            error
                .help("such a file has `version: v1` and `mig-configs`, or is a ConfigMap that holds one")
                .into()
        })
    }
}

/// What a document with configurations has somewhere.
const MARK: &str = "mig-configs";

/// Returns what stands behind the mark of a document on its line; `None` of any other line.
fn behind_mark(line: &str) -> Option<&str> {
    if line.trim_end() == "---" { Some("") } else { line.strip_prefix("--- ") }
}

/// Returns the documents of a file of Kubernetes that may have configurations, each with the lines that it has in the file.
/// A file of one document is returned whatever it has, so that its mistakes are told. Not more than two: that is one too
/// many.
fn documents(source: &Arc<SourceFile>) -> Vec<Arc<SourceFile>> {
    // The line that each begins behind, and its text.
    let mut all: Vec<(usize, String)> = vec![(0, String::new())];
    for (at, line) in source.text().lines().enumerate() {
        if behind_mark(line).is_some() {
            all.push((at, String::new()));
        }
        if let Some((_, text)) = all.last_mut() {
            match behind_mark(line) {
                // What stands on the line of the mark belongs to the document, in its columns.
                Some(rest) => text.push_str(&format!("    {rest}")),
                None => text.push_str(line),
            }
            text.push('\n');
        }
    }
    if all.len() == 1 {
        return vec![Arc::clone(source)];
    }
    let of_lines =
        |(before, text): &(usize, String)| SourceFile::new(source.name(), "\n".repeat(*before) + text);
    all.iter().filter(|(_, text)| text.contains(MARK)).take(2).map(of_lines).collect()
}

fn is_config_map(root: &Node) -> bool {
    root.get("kind").and_then(Node::as_str) == Some("ConfigMap")
}

/// Returns the text in a ConfigMap that has the configurations.
fn inner(root: &Node, source: &Arc<SourceFile>) -> Result<Option<Arc<SourceFile>>, Diagnostics> {
    let Some(data) = root.get("data") else { return Ok(None) };
    let mut found: Option<Arc<SourceFile>> = None;
    for (key, value) in data.expect_map("`data`")? {
        let Some(text) = value.as_str().filter(|text| text.contains(MARK)) else { continue };
        if found.is_some() {
            let error = "a second file of this ConfigMap has configurations of mig-parted";
            return Err(Diagnostic::error(error).at(&key.span).into());
        }
        found = Some(SourceFile::new(format!("{} (data.{})", source.name(), key.key_text()), text));
    }
    Ok(found)
}

fn of_root(root: &Node) -> Result<PartedFile, Diagnostics> {
    root.expect_map("a file of mig-parted")?;
    let mut errors = root.refuse_unknown_keys("a file of mig-parted", &KEYS);
    match root.get("version") {
        Some(version) if version.scalar_text().as_deref() == Some(VERSION) => {}
        Some(version) => {
            errors.push(Diagnostic::error("only version `v1` is known").at(&version.span));
        }
        None => errors.push(Diagnostic::error("a file of mig-parted needs `version: v1`").at(&root.span)),
    }
    let mut configs = Vec::new();
    match root.get("mig-configs") {
        None => errors.push(Diagnostic::error("a file of mig-parted needs `mig-configs`").at(&root.span)),
        Some(node) => {
            let entries = errors.absorb(node.expect_map("`mig-configs`")).unwrap_or_default();
            if entries.is_empty() && !errors.has_errors() {
                errors.push(Diagnostic::error("`mig-configs` has no configuration").at(&node.span));
            }
            for (key, value) in entries {
                configs.extend(config(key, value, &mut errors));
            }
        }
    }
    errors.into_result(PartedFile { configs })
}

fn config(key: &Node, value: &Node, errors: &mut Diagnostics) -> Option<Config> {
    let name = key.key_text();
    let items = errors.absorb(value.expect_seq(&format!("the configuration `{name}`")))?;
    if items.is_empty() {
        errors.push(Diagnostic::error(format!("the configuration `{name}` has no spec")).at(&value.span));
    }
    let specs = items.iter().filter_map(|item| spec(item, errors)).collect();
    Some(Config { name, specs, span: key.span.clone() })
}

fn spec(node: &Node, errors: &mut Diagnostics) -> Option<Spec> {
    const WHAT: &str = "a spec of mig-parted";
    errors.absorb(node.expect_map(WHAT))?;
    errors.append(node.refuse_unknown_keys(WHAT, &SPEC_KEYS));
    let mut needs = |key: &str| {
        let found = node.get(key);
        if found.is_none() {
            errors.push(Diagnostic::error(format!("{WHAT} needs `{key}`")).at(&node.span));
        }
        found
    };
    let (devices_at, enabled_at) = (needs("devices"), needs("mig-enabled"));
    let devices = devices_at.and_then(|devices_at| devices(devices_at, errors));
    let enabled = enabled_at.and_then(|at| errors.absorb(at.expect_bool("`mig-enabled`")));
    let filters = node.get("device-filter").map(|at| filters(at, errors)).unwrap_or_default();
    let instances = match node.get("mig-devices") {
        Some(at) => {
            let counts = counts(at, errors);
            if enabled == Some(false) && !counts.is_empty() {
                errors.push(Diagnostic::error("instances need `mig-enabled: true`").at(&at.span));
            }
            counts
        }
        None => {
            if enabled == Some(true) {
                let error = Diagnostic::error("`mig-enabled: true` needs `mig-devices`").at(&node.span);
                errors.push(error.help("`mig-devices: {}` is MIG without instances"));
            }
            Counts::new()
        }
    };
    Some(Spec { devices: devices?, filters, enabled: enabled?, instances, span: node.span.clone() })
}

fn devices(node: &Node, errors: &mut Diagnostics) -> Option<Devices> {
    if node.as_str() == Some("all") {
        return Some(Devices::All);
    }
    let wrong =
        |span: &Span| Diagnostic::error("`devices` wants `all`, or a list of the indexes of GPUs").at(span);
    let Some(items) = node.as_seq() else {
        errors.push(wrong(&node.span));
        return None;
    };
    let mut indexes = Vec::new();
    for item in items {
        match item.as_i64().and_then(|number| u32::try_from(number).ok()) {
            Some(index) => indexes.push(index),
            None => errors.push(wrong(&item.span)),
        }
    }
    Some(Devices::Indexes(indexes))
}

fn filters(node: &Node, errors: &mut Diagnostics) -> Vec<Filter> {
    let items = match node.as_seq() {
        Some(items) => items,
        None => std::slice::from_ref(node),
    };
    let mut filters = Vec::new();
    for item in items {
        let text = item.as_str().unwrap_or_default().to_owned();
        if item.as_str().is_none() {
            // YAML takes `0x233010DE` for a number, and mig-parted refuses those.
            let error = Diagnostic::error("a device id is a text").at(&item.span);
            errors.push(error.help("put it in quotes, as in \"0x233010DE\""));
            continue;
        }
        match filter(&text) {
            Some(filter) => filters.push(filter),
            None => errors.push(
                Diagnostic::error(format!("`{text}` is no device id"))
                    .at(&item.span)
                    .note("mig-parted reads it as another one, or as none, and says nothing")
                    .help("write device and vendor as in `0x233010DE`, and a subsystem behind a colon"),
            ),
        }
    }
    filters
}

fn filter(text: &str) -> Option<Filter> {
    let (device, subsystem) = match text.split_once(':') {
        Some((device, subsystem)) => (device, Some(subsystem)),
        None => (text, None),
    };
    let subsystem = match subsystem {
        Some(text) => Some(pci_id(text)?),
        None => None,
    };
    Some(Filter { device: pci_id(device)?, subsystem })
}

fn pci_id(text: &str) -> Option<PciId> {
    let hex = text.to_lowercase();
    let hex = hex.strip_prefix("0x")?;
    // `from_str_radix` takes a sign.
    if hex.is_empty() || hex.len() > 8 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let packed = u32::from_str_radix(hex, 16).ok()?;
    Some(PciId { device: u16::try_from(packed >> 16).ok()?, vendor: u16::try_from(packed & 0xffff).ok()? })
}

fn counts(node: &Node, errors: &mut Diagnostics) -> Counts {
    let mut counts = Counts::new();
    let entries = errors.absorb(node.expect_map("`mig-devices`")).unwrap_or_default();
    for (key, value) in entries {
        let name = key.key_text();
        if let Err(why) = profile(&name) {
            let error = Diagnostic::error(format!("`{name}` is no MIG profile: {why}")).at(&key.span);
            errors.push(error.help("profiles look like `3g.40gb`, `1c.3g.40gb` or `1g.10gb+me`"));
            continue;
        }
        match value.as_i64().and_then(|number| u32::try_from(number).ok()) {
            Some(count) => {
                counts.insert(name, count);
            }
            None => errors.push(
                Diagnostic::error(format!("`{name}` wants a whole number of instances, 0 or more"))
                    .at(&value.span),
            ),
        }
    }
    if !counts.is_empty() && counts.values().all(|count| *count == 0) {
        let error = Diagnostic::error("no profile has an instance").at(&node.span);
        errors.push(error.help("`mig-devices: {}` is MIG without instances"));
    }
    // A count of 0 says nothing.
    counts.retain(|_, count| *count > 0);
    counts
}

/// Checks the form of a profile's name: `[Cc.]Gg.Mgb`, then attributes that it has (`+a,b`) or lacks (`-a,b`).
pub(crate) fn profile(name: &str) -> Result<(), String> {
    let (base, attributes) = match name.find(['+', '-']) {
        Some(at) => (name.get(..at).unwrap_or_default(), name.get(at + 1..)),
        None => (name, None),
    };
    let number = |part: &str, unit: &str| {
        let digits = part.strip_suffix(unit)?;
        (digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0'))
            .then(|| digits.parse::<u32>().ok())?
    };
    let parts: Vec<&str> = base.split('.').collect();
    let (compute, gpu) = match parts.as_slice() {
        [gpu, memory] if number(memory, "gb").is_some() => (None, number(gpu, "g")),
        [compute, gpu, memory] if number(memory, "gb").is_some() => {
            (Some(number(compute, "c").ok_or("its first part is not like `1c`")?), number(gpu, "g"))
        }
        _ => return Err("it does not end like `3g.40gb`".to_owned()),
    };
    let gpu = gpu.ok_or("its part for the GPU instance is not like `3g`")?;
    if compute.is_some_and(|compute| compute == 0 || compute > gpu) {
        return Err(format!("a compute instance in it has 1 to {gpu} slices"));
    }
    let mut seen: Vec<&str> = Vec::new();
    for attribute in attributes.into_iter().flat_map(|text| text.split(',')) {
        if !ATTRIBUTES.contains(&attribute) {
            return Err(format!("`{attribute}` is none of the attributes {}", ATTRIBUTES.join(", ")));
        }
        if seen.contains(&attribute) {
            return Err(format!("it has `{attribute}` twice"));
        }
        seen.push(attribute);
    }
    Ok(())
}
