//! What kinds ask of systemd about units: whether it runs, and what it says of one.

use std::{collections::HashMap, path::PathBuf, time::Duration};

use crate::{
    declare::{Node, Trouble},
    process::{Finished, Run},
    tasks::nearest::nearest,
    world::Entry,
};

/// Time limit of a query to systemd.
const ANSWER: Duration = Duration::from_secs(25);

/// Returns the name with its suffix, as systemd completes it.
pub fn unit(name: &str) -> String {
    let suffixes = [
        ".service",
        ".socket",
        ".timer",
        ".target",
        ".path",
        ".mount",
        ".automount",
        ".swap",
        ".slice",
        ".scope",
        ".device",
    ];
    if suffixes.iter().any(|suffix| name.ends_with(suffix)) {
        name.to_owned()
    } else {
        format!("{name}.service")
    }
}

pub fn parse(text: &str) -> HashMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

pub fn systemctl(node: &Node<'_>) -> Result<PathBuf, Trouble> {
    let found = node.roots.tool("systemctl");
    // The folder is checked too, because systemctl is also installed where systemd does not run, such as in containers.
    let runs = !node.roots.is_real() || node.roots.path("/run/systemd/system").is_dir();
    found
        .filter(|_| runs)
        .ok_or_else(|| Trouble::invalid("this node does not run systemd, so it has no units"))
}

pub fn ask(node: &Node<'_>, systemctl: &PathBuf, arguments: &[&str]) -> Result<Finished, Trouble> {
    let run =
        Run::new(systemctl).args(["--no-ask-password", "--no-pager"]).args(arguments).user(node.user.clone());
    Ok(run.finish(&node.deadline.within(ANSWER))?)
}

pub fn not_found(node: &Node<'_>, systemctl: &PathBuf, unit: &str) -> Trouble {
    let listed = ask(node, systemctl, &["list-unit-files", "--no-legend", "--full"]);
    let text = listed.map(|done| done.stdout()).unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    let hint = nearest(unit, names).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
    Trouble::missing(format!("there is no unit `{unit}` on this node{hint}"))
}

/// Whether an earlier task of a prediction creates the unit's file.
pub fn foreseen(node: &Node<'_>, unit: &str) -> bool {
    ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system", "/run/systemd/system"]
        .iter()
        .any(|folder| {
            let path = node.roots.path(folder).join(unit);
            matches!(node.world.follow_anywhere(&path), Ok((_, Entry::File { .. })))
        })
}
