//! The command line as a run records it: a record is shown to others.

/// What was typed, with secrets left out: a run's record is shown to others.
pub fn command_line() -> Vec<String> {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let mut shown = vec!["gpufleet".to_owned()];
    shown.extend(without_values(words));
    shown
}

/// Short flags without a value, which may stand joined before one with a value.
const JOINED: &str = "vqbyCDkKJos";

/// The words of a command line, the values of `-e` and of `exec -a` replaced, and passwords of stores.
fn without_values(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut shown = Vec::new();
    let mut value_next = false;
    for word in words {
        // The URL of a store may have a password.
        let is_store = word.starts_with("postgres") || word.starts_with("--store=");
        let word = if is_store { gpufleet_history::redacted(&word) } else { word };
        if std::mem::take(&mut value_next) {
            shown.push(hidden(&word));
            continue;
        }
        if let Some(value) = word.strip_prefix("--extra-vars=") {
            shown.push(format!("--extra-vars={}", hidden(value)));
            continue;
        }
        if word.starts_with("--args=") {
            shown.push("--args=…".to_owned());
            continue;
        }
        // Why the letters before: short flags may be joined, as in `-ve name=value`.
        let cluster = word.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        let at = cluster.and_then(|rest| rest.find(['e', 'a']));
        let flags =
            cluster.zip(at).map(|(rest, at)| (rest.split_at(at), rest.get(at..at + 1).unwrap_or_default()));
        let flags = flags.filter(|((before, _), _)| before.chars().all(|flag| JOINED.contains(flag)));
        match flags {
            Some(((before, value), flag)) => match value.get(1..).unwrap_or_default() {
                "" => {
                    value_next = true;
                    shown.push(format!("-{before}{flag}"));
                }
                value => shown.push(format!("-{before}{flag}{}", hidden(value.trim_start_matches('=')))),
            },
            None => {
                value_next = word == "--extra-vars" || word == "--args";
                shown.push(word);
            }
        }
    }
    shown
}

/// The names that `-e` sets, without their values.
fn hidden(value: &str) -> String {
    if value.starts_with('@') {
        return value.to_owned();
    }
    match shell_words::split(value) {
        Ok(words) if words.iter().all(|word| word.contains('=')) => words
            .iter()
            .map(|word| format!("{}=…", word.split('=').next().unwrap_or_default()))
            .collect::<Vec<_>>()
            .join(" "),
        _ => "…".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_variables_are_not_recorded() {
        let typed = [
            "run",
            "a.yaml",
            "-e",
            "pw=secret",
            "-epw=s@secret",
            "--extra-vars=pw=secret",
            "-ve",
            "{\"pw\": \"secret\"}",
            "--extra-vars",
            "@vars.yaml",
            "-i",
            "inventory",
            "--yes",
            "-l",
            "gpu",
            "-a",
            "user secret",
            "-boa",
            "secret",
            "--args=x secret",
            "--store",
            "postgres://ops:secret@db/fleet",
            "--store=postgres://ops:secret@db/fleet",
        ];
        let shown = without_values(typed.map(str::to_owned).into_iter()).join(" ");
        assert!(!shown.contains("secret"), "{shown}");
        assert_eq!(
            shown,
            "run a.yaml -e pw=… -epw=… --extra-vars=pw=… -ve … --extra-vars @vars.yaml -i inventory --yes -l gpu -a … -boa … --args=… --store postgres://ops:***@db/fleet --store=postgres://ops:***@db/fleet"
        );
    }
}
