//! The machines' own records: when they were in service, and in which boot.

/// One boot of a machine, as recorded by the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    pub id: String,
    /// When its sshd listened, in milliseconds since the epoch.
    pub up: u64,
    /// When its shutdown began; `None` while it runs, or if its power was cut.
    pub down: Option<u64>,
}

/// Parses a machine's record, with `up MILLISECONDS BOOT_ID` or `down MILLISECONDS BOOT_ID` in each line.
pub(crate) fn boots(text: &str) -> Vec<Boot> {
    let mut boots: Vec<Boot> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, at, id] = words[..] else { panic!("a machine's record has the line `{line}`") };
        let at = at.parse().expect("a time in a machine's record");
        match what {
            "up" => boots.push(Boot { id: id.to_owned(), up: at, down: None }),
            _ => {
                let boot = boots
                    .last_mut()
                    .filter(|boot| boot.id == id)
                    .expect("a machine goes down after it was up");
                boot.down = Some(at);
            }
        }
    }
    boots
}

/// Returns when a machine was not in service after its first boot, given the power cuts; the last one may have no
/// end.
pub(crate) fn outages(boots: &[Boot], cuts: &[u64]) -> Vec<(u64, u64)> {
    let ends = boots.iter().enumerate().filter_map(|(index, boot)| {
        let next = boots.get(index + 1).map_or(u64::MAX, |next| next.up);
        let cut = cuts.iter().copied().find(|cut| (boot.up..next).contains(cut));
        let end = boot.down.into_iter().chain(cut).min()?;
        Some((end, next))
    });
    ends.collect()
}

/// Returns the largest number of them at once.
pub(crate) fn most_at_once(outages: &[(u64, u64)]) -> usize {
    let at = |moment: u64| outages.iter().filter(|(from, to)| (*from..*to).contains(&moment)).count();
    outages.iter().map(|(from, _)| at(*from)).max().unwrap_or_default()
}
