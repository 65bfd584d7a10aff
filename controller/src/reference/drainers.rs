//! Text about drainers, from their registry.

use std::fmt::Write as _;

use crate::playbook::{DRAINERS, DrainerInfo, SettingInfo, Shape};

/// The manual of all drainers, for a terminal.
pub fn drainers_text() -> String {
    let mut out =
        String::from("drain\n\n  How nodes are taken out of service and given back; a key of `rollout`.\n");
    for info in DRAINERS {
        let _ = write!(out, "\n{}\n  {}\n", info.word, info.summary);
        for setting in info.settings() {
            let _ = writeln!(out, "  {}  ({})", setting.name, brief(&setting));
            let _ = writeln!(out, "      {}", setting.about);
        }
        let _ = writeln!(out, "  for example `{}`", info.example);
    }
    out
}

/// The reference of all drainers, as docs/reference/drainers.md holds it.
pub fn drainers_markdown() -> String {
    let mut out = String::from(
        "# Drainers\n\n\
         Made from the registry of drainers; a test keeps this file true (`make reference` rewrites it). The guide is\n\
         [Drains](../guide/drains.md).\n\n\
         `drain` in a play's `rollout` is the word of a drainer, or a mapping of that word to its settings. A duration is\n\
         `90s`, `20m` or `2h`; a number alone counts seconds.\n\n\
         | drainer | what it does |\n|---|---|\n",
    );
    for info in DRAINERS {
        let _ = writeln!(out, "| [`{0}`](#{0}) | {1} |", info.word, info.summary);
    }
    for info in DRAINERS {
        section(info, &mut out);
    }
    out
}

fn section(info: &DrainerInfo, out: &mut String) {
    let _ = write!(out, "\n## {}\n\n{}\n", info.word, info.summary);
    let can: Vec<String> = [
        info.has_labels.then(|| {
            "Labels of its nodes can name failure domains (`failure_domain: {label: KEY}`).".to_owned()
        }),
        info.reboots
            .then(|| format!("It can reboot the nodes that it drained (`reboot: {{via: {}}}`).", info.word)),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !can.is_empty() {
        let _ = write!(out, "\n{}\n", can.join(" "));
    }
    let _ = write!(out, "\n```yaml\n{}\n```\n", info.example);
    let settings = info.settings();
    if !settings.is_empty() {
        out.push_str("\n| setting | value | meaning |\n|---|---|---|\n");
        rows("", &settings, out);
    }
}

/// A row a setting, and those of mappings behind it.
fn rows(above: &str, settings: &[SettingInfo], out: &mut String) {
    for setting in settings {
        let name = format!("{above}{}", setting.name);
        let _ = writeln!(out, "| `{name}` | {} | {} |", brief(setting), setting.about);
        let inner: &[Shape] = match &setting.shape {
            Shape::AnyOf(shapes) => shapes,
            shape => std::slice::from_ref(shape),
        };
        for shape in inner {
            if let Shape::Mapping(settings) = shape {
                rows(&format!("{name}."), settings, out);
            }
        }
    }
}

/// `duration above 0, default 2h`.
fn brief(setting: &SettingInfo) -> String {
    match (&setting.default, setting.required) {
        (_, true) => format!("{}, required", setting.shape),
        (Some(default), false) => format!("{}, default `{default}`", setting.shape),
        (None, false) => setting.shape.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_file_is_up_to_date() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/drainers.md");
        let wanted = drainers_markdown();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(there == wanted, "docs/reference/drainers.md is out of date: run `make reference`");
    }

    #[test]
    fn every_drainer_and_setting_is_told() {
        let (text, page) = (drainers_text(), drainers_markdown());
        for info in DRAINERS {
            for told in [&text, &page] {
                assert!(told.contains(info.summary) && told.contains(info.example), "{}", info.word);
            }
            for setting in info.settings() {
                assert!(text.contains(&format!("  {}  (", setting.name)), "{}: {}", info.word, setting.name);
                assert!(page.contains(&format!("| `{}` |", setting.name)), "{}: {}", info.word, setting.name);
            }
        }
    }
}
