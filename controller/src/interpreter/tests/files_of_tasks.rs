//! Roles, includes and imports.

use super::*;

/// A run over several files.
fn of_files(files: &[(&str, &str)], vars: serde_json::Value) -> Story {
    let map: HashMap<String, String> =
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let program = Program::load(&["play.yml"], &map).unwrap_or_else(|errors| panic!("{errors}"));
    program.library.read_late_from(Arc::new(map.clone()));
    let files: Arc<dyn Files> = Arc::new(CachedFiles::new(map));
    let tags = Arc::new(TagFilter::default());
    let cursor = Cursor::new(
        &Arc::new(program),
        PlayIndex(0),
        context(vars),
        HostVars::default(),
        Mode::Apply,
        tags,
        files,
    );
    run(&mut cursor.expect("a play"), scripted(&[("command", OpOutcomeSketch::Changed)]))
}

#[test]
fn roles_see_their_defaults_variables_and_parameters() {
    let story = of_files(
        &[
            (
                "play.yml",
                "- hosts: all\n  vars: {c: play}\n  roles:\n  - one\n  - {role: one, d: given}\n  - one\n  tasks:\n  - debug: {msg: 'after {{ a }} {{ b }}'}\n",
            ),
            ("roles/one/defaults/main.yml", "a: default\nd: default\nc: default\n"),
            ("roles/one/vars/main.yml", "b: vars\n"),
            ("roles/one/meta/main.yml", "dependencies: [base]\n"),
            ("roles/base/tasks/main.yml", "- debug: {msg: 'base {{ b }}'}\n"),
            (
                "roles/one/tasks/main.yml",
                "- debug: {msg: '{{ a }} {{ b }} {{ c }} {{ d }} {{ role_name }}'}\n",
            ),
        ],
        json!({}),
    );
    insta::assert_snapshot!(story.lines(), @r#"
    base : debug: ok "base vars"
    one : debug: ok "default vars play default one"
    one : debug: ok "default vars play given one"
    debug: ok "after default vars"
    end: Done
    "#);
}

#[test]
fn what_is_included_runs_for_each_item() {
    let story = of_files(
        &[
            (
                "play.yml",
                "- hosts: all\n  tasks:\n  - include_tasks: '{{ kind }}.yml'\n    loop: [x, y]\n    loop_control: {loop_var: it}\n    vars: {more: 'more {{ it }}'}\n  - include_tasks: other.yml\n    when: false\n",
            ),
            ("deep.yml", "- debug: {msg: '{{ it }} {{ more }}'}\n- command: 'run {{ it }}'\n"),
            ("other.yml", "- debug: {msg: other}\n"),
        ],
        json!({"kind": "deep"}),
    );
    insta::assert_snapshot!(story.lines(), @r#"
    include_tasks: ok "included: deep.yml (item=x)"
    include_tasks: ok "included: deep.yml (item=y)"
    debug: ok "x more x"
    command: changed
    debug: ok "y more y"
    command: changed
    include_tasks: skipped "the condition does not hold"
    end: Done
    "#);
    insta::assert_snapshot!(story.asked.join("\n"), @r"
    0/tasks.0+deep.yml.1@n1
    0/tasks.0+deep.yml#1.1@n1
    ");
}

/// A play that includes a file of this name, among these files that say who they are.
fn including(name: &str, more: &str, files: &[&str]) -> Vec<(String, String)> {
    let play = format!("- hosts: all\n  gather_facts: false\n  tasks:\n  - include_tasks: {name}\n{more}");
    let told = |file: &&str| ((*file).to_owned(), format!("- debug: {{msg: {file}}}\n"));
    std::iter::once(("play.yml".to_owned(), play)).chain(files.iter().map(told)).collect()
}

fn said_by(files: &[(String, String)], vars: serde_json::Value) -> Vec<String> {
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let lines = of_files(&files, vars).lines();
    lines.lines().filter(|line| !line.starts_with("include_tasks: ok")).map(ToOwned::to_owned).collect()
}

#[test]
fn a_default_in_the_name_of_a_file_stands_back_behind_what_the_host_says() {
    let files =
        including("\"tasks/{{ tier | default('none') }}.yml\"", "", &["tasks/gold.yml", "tasks/none.yml"]);
    assert_eq!(said_by(&files, json!({"tier": "gold"})), [r#"debug: ok "tasks/gold.yml""#, "end: Done"]);
    assert_eq!(said_by(&files, json!({})), [r#"debug: ok "tasks/none.yml""#, "end: Done"]);
    let files = including("\"setup-{{ tier | default('x') }}.yml\"", "", &["setup-gold.yml"]);
    assert_eq!(said_by(&files, json!({"tier": "gold"})), [r#"debug: ok "setup-gold.yml""#, "end: Done"]);
}

#[test]
fn a_file_may_be_named_by_a_loop_a_variable_or_the_folder_of_the_playbook() {
    let both = [r#"debug: ok "tasks/a.yml""#, r#"debug: ok "tasks/b.yml""#, "end: Done"];
    let names = ["tasks/a.yml", "tasks/b.yml"];
    let files = including("'{{ item }}'", "    loop: [tasks/a.yml, tasks/b.yml]\n", &names);
    assert_eq!(said_by(&files, json!({})), both);
    let files = including("'{{ item }}'", "    loop: '{{ all_of_them }}'\n", &names);
    assert_eq!(said_by(&files, json!({"all_of_them": names})), both);
    for name in ["'{{ playbook_dir }}/tasks/{{ f }}'", "'tasks/{{ f }}'", "'{{ \"tasks/\" ~ f }}'"] {
        let files = including(name, "", &names);
        assert_eq!(said_by(&files, json!({"f": "a.yml"})), [both[0], both[2]], "{name}");
    }
    let files = including("'{{ playbook_dir }}/tasks/a.yml'", "", &names);
    assert_eq!(said_by(&files, json!({})), [both[0], both[2]]);
}

#[test]
fn what_the_task_itself_names_is_known_before_the_run() {
    for (name, more) in [
        ("'{{ item }}'", "    loop: [tasks/a.yml, 'tasks/{{ x }}.yml']\n"),
        ("'{{ item }}'", "    with_first_found: [tasks/a.yml, tasks/b.yml]\n"),
        ("\"{{ lookup('first_found', ['tasks/a.yml', 'tasks/b.yml']) }}\"", ""),
        ("'{{ f }}'", "    vars: {f: \"tasks/{{ 'a' if x else 'b' }}.yml\"}\n"),
        ("'{{ playbook_dir }}/tasks/{{ x }}.yml'", ""),
    ] {
        let files = including(name, more, &["tasks/a.yml", "tasks/b.yml"]);
        let program =
            Program::load(&["play.yml"], &files.into_iter().collect::<HashMap<_, _>>()).expect("a play");
        let known: Vec<&str> = program.plays[0].tasks().iter().skip(1).map(|task| task.span.file()).collect();
        let mut sorted = known.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, ["tasks/a.yml", "tasks/b.yml"], "{name} {more}");
    }
}

#[test]
fn a_file_may_include_itself_until_a_condition_ends_it() {
    let story = of_files(
        &[
            ("play.yml", "- hosts: all\n  tasks:\n  - include_tasks: again.yml\n"),
            (
                "again.yml",
                "- debug: {msg: 'left {{ left }}'}\n- set_fact: {left: '{{ left - 1 }}'}\n- include_tasks: again.yml\n  when: left > 0\n",
            ),
        ],
        json!({"left": 2}),
    );
    insta::assert_snapshot!(story.lines(), @r#"
    include_tasks: ok "included: again.yml"
    debug: ok "left 2"
    set_fact: ok
    include_tasks: ok "included: again.yml"
    debug: ok "left 1"
    set_fact: ok
    include_tasks: skipped "the condition does not hold"
    end: Done
    "#);
}

#[test]
fn a_role_that_is_included_brings_its_handlers() {
    let story = of_files(
        &[
            (
                "play.yml",
                "- hosts: all\n  tasks:\n  - include_role: {name: one, tasks_from: other}\n    vars: {rv: 1}\n  - command: touch\n    notify: [h, 'one : named', topic]\n  handlers:\n  - name: h\n    debug: {msg: of the play}\n",
            ),
            ("roles/one/tasks/other.yml", "- debug: {msg: 'other {{ rv }} {{ d }}'}\n"),
            ("roles/one/defaults/main.yml", "d: 4\n"),
            (
                "roles/one/handlers/main.yml",
                "- name: h\n  debug: {msg: 'of the role {{ d }}'}\n- name: named\n  debug: {msg: named}\n- listen: topic\n  debug: {msg: listens}\n",
            ),
        ],
        json!({}),
    );
    insta::assert_snapshot!(story.lines(), @r#"
    include_role: ok "included: one"
    one : debug: ok "other 1 4"
    command: changed
    one : h: ok "of the role 4"
    one : named: ok "named"
    one : debug: ok "listens"
    end: Done
    "#);
}

#[test]
fn arguments_of_a_role_are_checked() {
    let files = |play: &'static str| {
        [
            ("play.yml", play),
            ("roles/one/tasks/main.yml", "- debug: {msg: '{{ version }}'}\n"),
            (
                "roles/one/meta/argument_specs.yml",
                "argument_specs:\n  main:\n    short_description: Installs\n    options:\n      version: {type: str, required: true}\n      count: {type: int}\n      mode: {choices: [a, b]}\n",
            ),
        ]
    };
    let right = of_files(
        &files("- hosts: all\n  roles:\n  - {role: one, version: '1', count: '2', mode: a}\n"),
        json!({}),
    );
    insta::assert_snapshot!(right.lines(), @r#"
    one : validating arguments against arg spec 'main' - installs: ok "The arg spec validation passed"
    one : debug: ok "1"
    end: Done
    "#);
    let wrong = of_files(&files("- hosts: all\n  roles:\n  - {role: one, count: x, mode: c}\n"), json!({}));
    insta::assert_snapshot!(wrong.lines(), @r#"
    one : validating arguments against arg spec 'main' - installs: failed "Validation of arguments failed:
    missing required arguments: version
    argument 'count' is of type str and we were unable to convert to int: "'x'" cannot be converted to an int
    value of mode must be one of: a, b, got: c"
    end: Failed { task: "one : Validating arguments against arg spec 'main' - Installs", message: "Validation of arguments failed:\nmissing required arguments: version\nargument 'count' is of type str and we were unable to convert to int: \"'x'\" cannot be converted to an int\nvalue of mode must be one of: a, b, got: c" }
    "#);
}

#[test]
fn variables_come_from_files_that_hosts_name() {
    let story = of_files(
        &[
            (
                "play.yml",
                "- hosts: all\n  vars_files:\n  - ['{{ site }}.yml', other.yml]\n  tasks:\n  - include_vars: '{{ site }}2.yml'\n  - include_vars: {file: b2.yml, name: box}\n  - debug: {msg: '{{ x }} {{ y }} {{ box.y }}'}\n",
            ),
            ("vars/b.yml", "x: '{{ z }}'\nz: lazy\n"),
            ("vars/b2.yml", "y: 2\n"),
        ],
        json!({"site": "b"}),
    );
    insta::assert_snapshot!(story.lines(), @r#"
    include_vars: ok
    include_vars: ok
    debug: ok "lazy 2 2"
    end: Done
    "#);
}

#[test]
fn a_task_is_tried_until_it_holds() {
    let text = "- hosts: all\n  tasks:\n  - command: check\n    register: r\n    until: r.rc == 0\n    retries: 2\n    delay: 7\n  - debug: {msg: '{{ r.attempts }}'}\n";
    let files: HashMap<String, String> = [("play.yml".to_owned(), text.to_owned())].into();
    let program = Arc::new(Program::load(&["play.yml"], &files).unwrap());
    let tags = Arc::new(TagFilter::default());
    let files: Arc<dyn Files> = Arc::new(CachedFiles::new(files));
    let fresh = || {
        let (tags, files) = (Arc::clone(&tags), Arc::clone(&files));
        Cursor::new(&program, PlayIndex(0), context(json!({})), HostVars::default(), Mode::Apply, tags, files)
            .unwrap()
    };
    let mut cursor = fresh();
    let mut waits = Vec::new();
    let story = run(&mut cursor, |action| {
        waits.push(action.wait);
        let rc = if waits.len() < 2 { 1 } else { 0 };
        OpOutcomeSketch::Command(rc, "").fed(action)
    });
    assert_eq!(story.asked, ["0/tasks.0@n1", "0/tasks.0~1@n1"]);
    assert_eq!(waits, [None, Some((7, 2))]);
    insta::assert_snapshot!(story.lines(), @r#"
    command: changed
    debug: ok "2"
    end: Done
    "#);
    let story = run(&mut fresh(), |action| OpOutcomeSketch::Command(1, "").fed(action));
    assert_eq!(story.asked.len(), 3);
    insta::assert_snapshot!(story.lines(), @r#"
    command: failed "non-zero return code 1"
    end: Failed { task: "command", message: "non-zero return code 1" }
    "#);
}

#[test]
fn a_role_may_end_early_and_what_is_around_it_goes_on() {
    let role = "- debug: {msg: one}\n- block:\n  - meta: end_role\n    when: short | default(true)\n  - debug: {msg: two}\n- debug: {msg: three}\n";
    let said = |play: &str, vars: serde_json::Value| {
        let story = of_files(
            &[
                ("play.yml", play),
                ("roles/r/tasks/main.yml", role),
                ("more.yml", "- include_role: {name: r}\n- debug: {msg: after it}\n"),
            ],
            vars,
        );
        assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
        let said = story
            .reports
            .iter()
            .filter(|report| report.kind == "debug")
            .filter_map(|report| report.message.clone());
        said.collect::<Vec<_>>().join(", ")
    };
    let listed = "- hosts: all\n  gather_facts: false\n  roles: [r]\n  tasks: [{debug: {msg: end}}]\n";
    assert_eq!(said(listed, json!({})), "one, end");
    assert_eq!(said(listed, json!({"short": false})), "one, two, three, end");
    let block = "- hosts: all\n  gather_facts: false\n  tasks:\n  - block:\n    - include_role: {name: r}\n    - debug: {msg: beside}\n  - import_role: {name: r}\n  - debug: {msg: end}\n";
    assert_eq!(said(block, json!({})), "one, beside, one, end");
    let included =
        "- hosts: all\n  gather_facts: false\n  tasks:\n  - include_tasks: more.yml\n  - debug: {msg: end}\n";
    assert_eq!(said(included, json!({})), "one, after it, end");
}

#[test]
fn a_play_may_end_for_one_host_a_batch_or_all() {
    let end = |action: &str| {
        let text = format!(
            "- hosts: all\n  gather_facts: false\n  tasks:\n  - {{name: one, sysctl: {{name: a, value: 1}}, notify: h}}\n  - meta: {action}\n  - {{name: two, command: a}}\n  post_tasks:\n  - {{name: three, command: a}}\n  handlers:\n  - {{name: h, command: a}}\n"
        );
        let story = run(&mut cursor(&text, json!({}), Mode::Apply), |action| match action.phase {
            Phase::Declared => OpOutcomeSketch::Changed.fed(action),
            _ => OpOutcomeSketch::Ok.fed(action),
        });
        let End { end_play, end_batch, cleared_errors, .. } = story.end;
        let asked: Vec<&str> = story.asked.iter().map(|id| id.trim_end_matches("@n1")).collect();
        format!("{end_play} {end_batch} {cleared_errors} {}", asked.join(" "))
    };
    let ended = "0/tasks.0 0/tasks.0+verify";
    assert_eq!(end("end_host"), format!("false false false {ended}"));
    assert_eq!(end("end_play"), format!("true false false {ended}"));
    assert_eq!(end("end_batch"), format!("false true false {ended}"));
    let all = "0/tasks.0 0/tasks.2 0/handlers.0 0/tasks.0+verify 0/post_tasks.0 0/tasks.0+verify#1";
    assert_eq!(end("clear_host_errors"), format!("false false true {all}"));
    assert_eq!(end("noop"), format!("false false false {all}"));
}

#[test]
fn facts_may_be_forgotten() {
    let text = "- hosts: all\n  gather_facts: true\n  tasks:\n  - debug: {msg: '{{ ansible_system }}'}\n  - meta: clear_facts\n  - debug: {msg: '{{ ansible_system | default(\"gone\") }}'}\n";
    let story = run(&mut cursor(text, json!({}), Mode::Apply), |_| {
        let mut outcome = gpufleet_protocol::OpOutcome::new(gpufleet_protocol::OpStatus::Ok);
        outcome.facts = Some(Box::default());
        Fed::Outcome(Box::new(outcome))
    });
    let said: Vec<&str> = story.reports.iter().filter_map(|report| report.message.as_deref()).collect();
    assert_eq!(said, ["Linux", "gone"]);
}

#[test]
fn what_an_included_role_shows_and_checks_is_up_to_the_task() {
    let said = |more: &str| {
        let play = format!(
            "- hosts: all\n  gather_facts: false\n  tasks:\n  - include_role: {{name: r{more}}}\n  - debug: {{msg: '{{{{ d | default(\"unseen\") }}}}'}}\n"
        );
        let story = of_files(
            &[
                ("play.yml", &play),
                ("roles/r/tasks/main.yml", "- debug: {msg: in it}\n"),
                ("roles/r/defaults/main.yml", "d: of r\n"),
                (
                    "roles/r/meta/argument_specs.yml",
                    "argument_specs: {main: {options: {needed: {required: true}}}}\n",
                ),
            ],
            json!({}),
        );
        let said: Vec<&str> =
            story.reports.iter().skip(1).filter_map(|report| report.message.as_deref()).collect();
        said.join(", ")
    };
    assert_eq!(said(""), "Validation of arguments failed:\nmissing required arguments: needed");
    assert_eq!(said(", rolespec_validate: false"), "in it, unseen");
    assert_eq!(said(", rolespec_validate: false, public: true"), "in it, of r");
}

#[test]
fn what_was_included_is_registered() {
    let story = of_files(
        &[
            (
                "play.yml",
                "- hosts: all\n  gather_facts: false\n  tasks:\n  - include_tasks: a.yml\n    register: r\n  - debug: {msg: '{{ r.include }} {{ r.changed }}'}\n",
            ),
            ("a.yml", "- debug: {msg: in it}\n"),
        ],
        json!({}),
    );
    assert_eq!(
        story.reports.last().and_then(|report| report.message.as_deref()),
        Some("a.yml False"),
        "{}",
        story.lines()
    );
}
