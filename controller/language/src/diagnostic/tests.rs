use proptest::prelude::*;

use super::*;

fn show(diagnostic: Diagnostic) -> String {
    render(&diagnostic.into(), false)
}

#[test]
fn looks_as_designed() {
    let source = SourceFile::new("playbooks/driver.yaml", "- hosts: gpu\n  tasks: []\n  seriall: 10\n");
    let diagnostic = Diagnostic::error("unknown option `seriall`")
        .at(&Span::new(&source, 3, 3, 7))
        .label("not an option of a play")
        .suggest("seriall", ["hosts", "serial", "tasks"]);
    insta::assert_snapshot!(show(diagnostic), @r"
    error: unknown option `seriall`
      --> playbooks/driver.yaml:3:3
       |
     3 |   seriall: 10
       |   ^^^^^^^ not an option of a play
    help: did you mean `serial`?
    ");
}

#[test]
fn line_numbers_widen_the_gutter() {
    let source = SourceFile::new("a.yaml", "\n".repeat(13) + "    - gpu_powr:\n");
    let diagnostic = Diagnostic::error("unknown task `gpu_powr`")
        .at(&Span::new(&source, 14, 7, 8))
        .label("no task kind of this name");
    insta::assert_snapshot!(show(diagnostic), @r"
    error: unknown task `gpu_powr`
      --> a.yaml:14:7
        |
     14 |     - gpu_powr:
        |       ^^^^^^^^ no task kind of this name
    ");
}

#[test]
fn tabs_and_wide_characters_keep_carets_in_place() {
    let source = SourceFile::new("a", "\t機械: x");
    insta::assert_snapshot!(show(Diagnostic::error("no").at(&Span::new(&source, 1, 2, 2))), @r"
    error: no
      --> a:1:2
       |
     1 |     機械: x
       |     ^^^^
    ");
}

#[test]
fn long_lines_are_clipped_around_the_carets() {
    let source = SourceFile::new("a", format!("{}HERE{}", "x".repeat(300), "y".repeat(300)));
    let text = show(Diagnostic::error("no").at(&Span::new(&source, 1, 301, 4)));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[3].starts_with(" 1 | …xxx") && lines[3].ends_with("yyy…"), "{text}");
    assert_eq!(lines[3].chars().skip(lines[4].find('^').unwrap()).take(4).collect::<String>(), "HERE");
    assert!(lines[3].chars().count() < 100);
}

#[test]
fn place_behind_the_end_of_the_file_has_no_excerpt() {
    let source = SourceFile::new("a", "x");
    insta::assert_snapshot!(show(Diagnostic::error("no").at(&Span::new(&source, 7, 1, 1)).label("why")), @r"
    error: no
      --> a:7:1
    note: why
    ");
}

#[test]
fn values_of_secret_keys_are_masked() {
    for (text, column) in [
        ("db_password: hunter2 # x", 14),
        ("gpu1 ansible_host=1 ansible_password=hunter2", 38),
        ("{user: a, token: hunter2}", 18),
        ("\"api_key\": 'hunter2'", 12),
        ("- vault_pw: hunter2", 13),
    ] {
        let source = SourceFile::new("a", text);
        let shown = show(Diagnostic::error("no").at(&Span::new(&source, 1, column, 7)));
        assert!(!shown.contains("hunter2") && shown.contains("********\n"), "{shown}");
        assert!(shown.contains("^^^^^^^^"), "{shown}");
    }
    let source = SourceFile::new("a", "db:\n  password: |\n    hunter1\n\n    hunter2\n  user: x\n");
    let at = |line| show(Diagnostic::error("no").at(&Span::new(&source, line, 5, 2)));
    assert!(!at(3).contains("hunter") && !at(5).contains("hunter"));
    assert!(at(6).contains("user: x"));
    let source = SourceFile::new("a", "- tokens:\n    - hunter1\n    - {a: hunter2}\n- user: x\n");
    let at = |line| show(Diagnostic::error("no").at(&Span::new(&source, line, 5, 2)));
    assert!(!at(2).contains("hunter") && !at(3).contains("hunter") && at(4).contains("user"));
    let source = SourceFile::secret("a", "x: hunter2");
    assert!(!show(Diagnostic::error("no").at(&Span::new(&source, 1, 4, 2))).contains("hunter"));
}

#[test]
fn ordinary_keys_are_not_secret() {
    for key in ["ansible_host", "ansible_ssh_private_key_file", "keyboard", "monkey", "passive", "hosts"] {
        assert!(!looks_secret(key), "{key}");
    }
    for key in [
        "ansible_password",
        "ansible_ssh_pass",
        "API-KEY",
        "vault_db",
        "githubToken",
        "ansible_become_password",
    ] {
        assert!(looks_secret(key), "{key}");
    }
}

#[test]
fn suggestions_are_close_or_absent() {
    assert_eq!(suggest("taks", ["tags", "tasks"]), Some("tasks"));
    assert_eq!(suggest("whne", ["when", "with_items"]), Some("when"));
    assert_eq!(suggest("max-unavailable", ["max_unavailable"]), Some("max_unavailable"));
    assert_eq!(suggest("Hosts", ["hosts", "host"]), Some("hosts"));
    assert_eq!(suggest("rack9", ["rack1", "rack2"]), Some("rack1"));
    assert_eq!(suggest("x", ["a", "b"]), None);
    assert_eq!(suggest("frobnicate", ["hosts", "tasks"]), None);
    assert_eq!(suggest("", ["a"]), None);
}

#[test]
fn colour_only_adds_escapes() {
    let source = SourceFile::new("a", "abc");
    let diagnostics: Diagnostics = Diagnostic::error("no").at(&Span::new(&source, 1, 1, 1)).help("h").into();
    let coloured = render(&diagnostics, true);
    assert!(coloured.contains("\u{1b}["));
    let mut plain = String::new();
    let mut in_escape = false;
    for c in coloured.chars() {
        match c {
            '\u{1b}' => in_escape = true,
            'm' if in_escape => in_escape = false,
            c if !in_escape => plain.push(c),
            _ => {}
        }
    }
    assert_eq!(plain, render(&diagnostics, false));
}

#[test]
fn terminal_escapes_in_messages_and_sources_do_not_reach_the_screen() {
    let source = SourceFile::new("a", "x\u{1b}[2Jy");
    let shown = show(Diagnostic::error("bad \u{1b}[2J").at(&Span::new(&source, 1, 1, 9)).help("\u{7}"));
    assert!(!shown.contains('\u{1b}') && !shown.contains('\u{7}'));
}

proptest! {
    #[test]
    fn rendering_never_panics(text in "(\\PC|\t|\n|[=: ]|key){0,200}", line in 0u32..9, column in 0u32..300, length in 0u32..300, colour: bool) {
        let source = SourceFile::new("a", text);
        let diagnostic = Diagnostic::error("m").at(&Span::new(&source, line, column, length)).label("l");
        let shown = render(&diagnostic.into(), colour);
        prop_assert!(shown.lines().count() <= 6);
    }
}
