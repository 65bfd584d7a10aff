//! `report`: shows what a run did, writes it as a document, signs and checks that, and compares two.

use std::{
    fs,
    path::{Path, PathBuf},
};

use gpufleet::{
    display::{self, JsonLines, PlanView},
    event::{Event, Verb},
    journal::{RunDir, RunId, glance, newest_runs, process_of, read_events, resolve_run},
    report::{Difference, HTML, JSON, NOT_OVER, Renderer, RunModel, Snapshot, Standing, document},
    signature::{self, AllowedSigners, Signed},
    transport::SigningKey,
    visible::command_line,
};
use jiff::tz::TimeZone;
use serde_json::Value;

use super::{
    args::{
        DiffFormat, ReportArgs, ReportCommand, ReportDiffArgs, ReportFormat, ReportVerifyArgs, RunKind,
        Trusted,
    },
    environment::Environment,
    error::CommandError,
    fleet,
    history::screen,
    output::Output,
};

/// The exit code for a report that is not what it should be.
const NOT_GENUINE: u8 = 2;
/// Bytes of a report that are read at most: 10,000 nodes with many findings have a tenth of it.
const MOST_BYTES: u64 = 1 << 30;
/// Bytes of a signature, a key or a list of signers.
const MOST_SMALL: u64 = 1 << 20;

/// The word for the newest run.
const LATEST: &str = "latest";

/// A recorded run.
struct Recorded {
    dir: RunDir,
    events: Vec<Event>,
    model: RunModel,
}

impl Recorded {
    fn read(run: &str, environment: &Environment) -> Result<Self, CommandError> {
        Self::of(&resolve_run(&environment.state_dir, run)?, environment)
    }

    fn of(run: &RunId, environment: &Environment) -> Result<Self, CommandError> {
        let dir = RunDir::new(&environment.state_dir, run);
        // Why before it is read: a run that ends meanwhile has its last event then.
        let at_work = process_of(&dir).is_some();
        let events = read_events(&dir.journal())?;
        let mut model = RunModel::of(&events);
        model.at_work = at_work;
        Ok(Self { dir, events, model })
    }

    fn document(&self, renderer: &Renderer) -> Result<String, CommandError> {
        renderer.render(&self.model, &self.events).map_err(CommandError::internal)
    }
}

pub fn report(args: &ReportArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    match &args.command {
        None => show(args, environment, output),
        Some(ReportCommand::Diff(args)) => diff(args, environment, output),
        Some(ReportCommand::Verify(args)) => verify(args, environment, output),
    }
}

/// The newest run of a kind.
fn newest(of: RunKind, environment: &Environment) -> Result<RunId, CommandError> {
    let (verb, word) = match of {
        RunKind::Run => (Verb::Run, "a run"),
        RunKind::Plan => (Verb::Plan, "a plan"),
        RunKind::Audit => (Verb::Audit, "an audit"),
    };
    let runs = newest_runs(&environment.state_dir).into_iter();
    let found =
        runs.filter_map(|run| glance(&environment.state_dir, run)).find(|run| run.started.verb == verb);
    match found {
        Some(found) => Ok(found.run),
        None => Err(CommandError::user(format!("this machine has no record of {word}"))
            .hint("`gpufleet runs` lists those that it has")),
    }
}

fn show(args: &ReportArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let recorded = match args.of {
        Some(of) => Recorded::of(&newest(of, environment)?, environment)?,
        None => Recorded::read(&args.run, environment)?,
    };
    let Recorded { dir, events, model } = &recorded;
    let code = match model.standing() {
        Standing::Finished => 0,
        Standing::Running | Standing::CutOff => NOT_OVER,
    };
    let format = args.format.unwrap_or_else(|| match &args.output {
        Some(file) => {
            let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            ReportFormat::Document(Renderer::for_ending(ending).unwrap_or(&JSON))
        }
        None => ReportFormat::Human,
    });
    if let (Some(file), ReportFormat::Human | ReportFormat::Path) = (&args.output, format) {
        let error = format!(
            "`--format human` and `path` are for a person, and are not written to {}",
            file.display()
        );
        return Err(CommandError::user(error)
            .hint("choose another format, or leave it out: the name's ending says it"));
    }
    // Why on this screen: who says `latest` may mean another one, as after an audit at night.
    if let (true, ReportFormat::Human, Some(run)) = (args.run == LATEST, format, &model.run) {
        let at = model
            .started
            .map_or_else(String::new, |at| format!(" of {}", display::moment(at, &TimeZone::system())));
        output.status(&format!(
            "{} {}{at}: {}",
            model.verb().as_str(),
            run.run_id,
            command_line(&run.command_line)
        ));
    }
    let text = match format {
        ReportFormat::Human => {
            display::not_over(model, &TimeZone::system(), &output.style)
                + &screen(model, PlanView::Summary, output)
        }
        ReportFormat::Jsonl => {
            let mut lines = JsonLines::new(Vec::new());
            events.iter().try_for_each(|event| lines.event(event))?;
            lines.into_text()
        }
        ReportFormat::Document(renderer) => recorded.document(renderer)?,
        ReportFormat::Path => {
            // Why always: a page of an earlier moment would look like this one's.
            dir.put(&dir.report_html(), &recorded.document(&HTML)?)?;
            dir.report_html().display().to_string()
        }
    };
    let Some(file) = &args.output else {
        output.data(&text)?;
        return Ok(code);
    };
    // Before anything is written: a report without its signature may be taken for one that has it.
    let signed = args.sign.as_deref().map(|key| sign(&text, key, environment)).transpose()?;
    write(file, &text)?;
    if let Some((signature, key)) = signed {
        let beside = beside(file);
        write(&beside, &signature)?;
        output.status(&format!("signed with {key}: {}", beside.display()));
    }
    Ok(code)
}

/// Returns the signature, and the name of the key.
fn sign(text: &str, path: &Path, environment: &Environment) -> Result<(String, String), CommandError> {
    let failed = |why: String| {
        CommandError::user(format!("cannot sign with {}: {why}", path.display()))
            .hint("nothing was written; without `--sign` the report is")
    };
    let surroundings = fleet::surroundings(None, environment);
    let key = SigningKey::new(path, &surroundings);
    let bytes = signature::to_be_signed(text.as_bytes()).map_err(CommandError::internal)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CommandError::internal)?;
    let (public, signed) = runtime.block_on(key.sign(bytes)).map_err(failed)?;
    let armored = signature::armored(&public, signed).map_err(CommandError::internal)?;
    // Why read back: a signature that nobody can check must not leave this machine.
    let checked = signature::check(text.as_bytes(), &armored).map_err(CommandError::internal)?;
    Ok((armored, checked.to_string()))
}

fn write(file: &Path, text: &str) -> Result<(), CommandError> {
    fs::write(file, text).map_err(|e| CommandError::user(format!("cannot write {}: {e}", file.display())))
}

/// The name of a file's signature.
fn beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".sig");
    PathBuf::from(name)
}

fn read(file: &Path, most: u64) -> Result<String, CommandError> {
    let failed = |why: String| CommandError::user(format!("cannot read {}: {why}", file.display()));
    let size = fs::metadata(file).map_err(|error| failed(error.to_string()))?.len();
    if size > most {
        return Err(failed(format!("it has {size} bytes, more than {most}")));
    }
    let bytes = fs::read(file).map_err(|error| failed(error.to_string()))?;
    String::from_utf8(bytes).map_err(|_| failed("it is no text in UTF-8".to_owned()))
}

fn diff(args: &ReportDiffArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let difference =
        Difference::between(&snapshot(&args.before, environment)?, &snapshot(&args.after, environment)?);
    let text = match args.format {
        DiffFormat::Human => display::difference_screen(&difference, &TimeZone::system(), &output.style),
        DiffFormat::Json => gpufleet::visible::json_document(&difference).map_err(CommandError::internal)?,
    };
    output.data(&text)?;
    Ok(0)
}

/// A run by its id, or the file of a report.
fn snapshot(word: &str, environment: &Environment) -> Result<Snapshot, CommandError> {
    let path = Path::new(word);
    if !path.is_file() {
        let model = Recorded::read(word, environment)?.model;
        return Snapshot::of(document(&model)).map_err(CommandError::internal);
    }
    let text = read(path, MOST_BYTES)?;
    let wrong = |why: String| {
        CommandError::user(format!("cannot compare {word}: {why}"))
            .hint("`gpufleet report RUN --format json -o FILE` writes a report that can be compared")
    };
    let value: Value =
        serde_json::from_str(&text).map_err(|error| wrong(format!("it is no JSON: {error}")))?;
    Snapshot::of(value).map_err(|error| wrong(error.to_string()))
}

fn verify(args: &ReportVerifyArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let text = read(&args.file, MOST_BYTES)?;
    let beside = beside(&args.file);
    let signature = read(&beside, MOST_SMALL)
        .map_err(|error| error.hint("`gpufleet report RUN -o FILE --sign KEY` writes FILE and FILE.sig"))?;
    let name = args.file.display();
    let answer = match signature::check(text.as_bytes(), &signature) {
        Ok(signed) => trusted(&signed, &args.trusted)?,
        Err(error) => Err(format!("the signature in {}: {error}", beside.display())),
    };
    let said = match answer {
        Ok(said) => said,
        Err(why) => {
            output.data(&format!("NOT VERIFIED {name}: {why}"))?;
            return Ok(NOT_GENUINE);
        }
    };
    let told = told(&text, environment);
    let (word, code) = if told.is_same { ("verified", 0) } else { ("NOT THE SAME", NOT_GENUINE) };
    output.data(&format!("{word} {name}: {said}{}", told.text))?;
    Ok(code)
}

/// Says who signed, or why that is not to be trusted.
fn trusted(signed: &Signed, trusted: &Trusted) -> Result<Result<String, String>, CommandError> {
    if let Some(path) = &trusted.key {
        let wrong = |error| CommandError::user(format!("{} is no public key: {error}", path.display()));
        let key = ssh_key::PublicKey::from_openssh(read(path, MOST_SMALL)?.trim()).map_err(wrong)?;
        return Ok(match signed.is_by(&key) {
            true => Ok(format!("signed with {signed}")),
            false => Err(format!("signed with another key, {signed}")),
        });
    }
    let Some(path) = &trusted.allowed_signers else {
        return Err(CommandError::internal("no key to check with"));
    };
    let zone = TimeZone::system();
    let signers = AllowedSigners::read(&read(path, MOST_SMALL)?, &zone)
        .map_err(|error| CommandError::user(format!("{}, {error}", path.display())))?;
    Ok(match signers.signer(signed, jiff::Timestamp::now()) {
        Ok(who) => Ok(format!("signed by {who} with {signed}")),
        Err(why) => Err(format!("signed with {signed}, but {why} in {}", path.display())),
    })
}

/// What a report says of itself, compared with the journal of its run.
struct ToldOf {
    text: String,
    /// False only if there is a journal, and it gives another document.
    is_same: bool,
}

fn told(text: &str, environment: &Environment) -> ToldOf {
    let value: Option<Value> = serde_json::from_str(text).ok();
    let Some(snapshot) = value.clone().and_then(|value| Snapshot::of(value).ok()) else {
        return ToldOf {
            text: "\n  only reports in JSON are compared with the journal of their run".to_owned(),
            is_same: true,
        };
    };
    let at = snapshot
        .as_of
        .map(|at| format!(" as of {}", display::moment(at, &TimeZone::system())))
        .unwrap_or_default();
    let run = display::clean(&format!("{} {}{at}", snapshot.verb, snapshot.run_id));
    let mut text = format!("\n  report of {run}\n  ");
    // Only of this very id: a report may say `latest` too.
    let recorded = Recorded::read(&snapshot.run_id, environment);
    let Some(recorded) = recorded.ok().filter(|found| found.model.run_id() == snapshot.run_id) else {
        text.push_str("its journal is not on this machine: the document was not computed again");
        return ToldOf { text, is_same: true };
    };
    let is_same = value.is_some_and(|value| value == document(&recorded.model));
    text.push_str(match is_same {
        true => "its journal is on this machine, and gives the same document",
        false => {
            "its journal is on this machine, and gives another document: the run went on after the report, another \
             version of gpufleet wrote one of them, or one was changed"
        }
    });
    ToldOf { text, is_same }
}
