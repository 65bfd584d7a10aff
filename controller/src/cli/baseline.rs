//! `baseline`: lists and shows baselines, and makes one from good nodes.

use std::{fs::OpenOptions, io::Write as _, path::Path};

use gpufleet::{
    display,
    visible::{command_line, visible},
};
use gpufleet_compliance::{
    Finding, Verdict,
    baseline::{self, Choice, GroupHint},
    fold, judge,
    learn::learn,
};
use gpufleet_protocol::{NodeOp, OpStatus, signal::Signals, tasks::HealthInfo};

use super::{
    adhoc::{Target, call, on_each, request},
    args::{BaselineCommand, BaselineFromArgs},
    environment::Environment,
    error::CommandError,
    output::Output,
};

/// How long reading the signals of a node may take, in seconds.
const SIGNALS_S: u64 = 120;
/// Findings of a node that are shown.
const MOST_SHOWN: usize = 5;

pub fn baseline(
    command: &BaselineCommand,
    environment: &Environment,
    output: &Output,
) -> Result<u8, CommandError> {
    match command {
        BaselineCommand::List => {
            let line = |(name, purpose): (&str, &str)| format!("{name:12}{purpose}\n");
            output.data(&baseline::built_in().map(line).collect::<String>())?;
            Ok(0)
        }
        BaselineCommand::Show { name } => {
            // Why: a name that does not exist gets the same message as in an audit.
            baseline::load(&[Choice::BuiltIn(name.clone())], &|_| GroupHint::Known)?;
            output.data(baseline::text(name).unwrap_or_default())?;
            Ok(0)
        }
        BaselineCommand::From(args) => from(args, environment, output),
    }
}

fn from(args: &BaselineFromArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let policy = baseline::load(&[Choice::BuiltIn(args.extends.clone())], &|_| GroupHint::Known)?.policy;
    if let Some(file) = args.output.as_deref().filter(|file| file.exists()) {
        let error = format!("{} exists already", file.display());
        return Err(CommandError::user(error).hint("name another file, or remove that one"));
    }
    let target = Target::read_only(&args.pattern, &args.access);
    let read = on_each(&target, environment, output, |link| async move {
        let op = NodeOp::HealthInfo(HealthInfo::default());
        let outcome = call(link, request(op, SIGNALS_S)).await.map_err(|(_, why)| why)?;
        if let OpStatus::Failed { message, .. } = outcome.status {
            return Err(message);
        }
        let signals = outcome.data.get("signals").cloned().ok_or("the node gave no signals")?;
        serde_json::from_value::<Signals>(signals)
            .map_err(|error| format!("its signals cannot be read: {error}"))
    })?;
    let asked = read.len();
    let mut good: Vec<(&str, &Signals)> = Vec::new();
    for (host, signals) in &read {
        let host = host.as_str();
        let signals = match signals {
            Ok(signals) => signals,
            Err(why) => {
                output.warning(&format!("{host} could not be read: {}", visible(why)));
                continue;
            }
        };
        let policy = policy.for_node(host, &[]);
        let mut findings = judge(&policy, signals);
        let verdict = fold(&policy, &mut findings);
        if !verdict.compliant {
            output.warning(&format!("{host} is not good by `{}`: {}", args.extends, told(&findings)));
        }
        if verdict.compliant || args.anyway {
            good.push((host, signals));
        }
    }
    if good.is_empty() {
        let error = CommandError::user("there is no good node to learn from; nothing was written");
        let audit = command_line(["gpufleet", "audit", "--baseline", &args.extends]);
        let hint = format!("`{audit}` tells all; --anyway learns from such nodes too");
        return Err(error.hint(hint));
    }
    let learned = learn(&good);
    let of_file = args.output.as_deref().and_then(Path::file_stem).and_then(|stem| stem.to_str());
    let name = args.name.as_deref().or(of_file).unwrap_or(&args.pattern);
    let origin = format!(
        "Learned on {} from {} ({} of {}), by gpufleet {}. Read it before it judges others.",
        jiff::Zoned::now().date(),
        args.pattern,
        good.len(),
        display::count(asked, "node"),
        env!("CARGO_PKG_VERSION"),
    );
    let text = learned.file(name, &args.extends, &origin);
    // Never handed out unread: a file that an audit refuses is an error here.
    let source = gpufleet::diagnostic::SourceFile::new("the learned baseline", text.as_str());
    baseline::load(&[Choice::File(source)], &|_| GroupHint::Known).map_err(CommandError::internal)?;
    let Some(file) = &args.output else {
        output.data(&text)?;
        return Ok(0);
    };
    let failed =
        |error: std::io::Error| CommandError::user(format!("cannot write {}: {error}", file.display()));
    let mut new = OpenOptions::new().write(true).create_new(true).open(file).map_err(failed)?;
    new.write_all(text.as_bytes()).map_err(failed)?;
    output.status(&format!(
        "{}: {} declared, {} not; {} of {} read",
        file.display(),
        display::count(learned.declared.len(), "value"),
        learned.left_out.len(),
        good.len(),
        display::count(asked, "node"),
    ));
    Ok(0)
}

/// What is wrong with a node, the worst first.
fn told(findings: &[Finding]) -> String {
    let mut bad: Vec<&Finding> =
        findings.iter().filter(|finding| finding.verdict >= Verdict::Drift).collect();
    bad.sort_by_key(|finding| std::cmp::Reverse(finding.verdict));
    let line = |finding: &&Finding| {
        let subject = match finding.subject.label() {
            "" => String::new(),
            label => format!(" of {label}"),
        };
        format!("{}{subject} {}: {}", finding.check.id, finding.verdict, finding.note)
    };
    let shown: Vec<String> = bad.iter().take(MOST_SHOWN).map(line).collect();
    let more = match bad.len().saturating_sub(MOST_SHOWN) {
        0 => String::new(),
        more => format!("; {more} more"),
    };
    visible(&(shown.join("; ") + &more)).into_owned()
}
