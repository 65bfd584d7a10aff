//! Output of ad hoc commands, one node at a time or with equal outputs grouped.

use super::{Role, Style, count, figures::clean_block};
use crate::{report::fold_names, visible::visible_lines};

/// The answer of one node to `exec`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecResult {
    pub host: String,
    /// Exit code; `None` if the command did not run to its end.
    pub rc: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// Why it did not run, such as that the node could not be reached.
    pub error: Option<String>,
}

/// Returns `host | rc=0 >>` and the output.
pub fn exec_one(result: &ExecResult, style: &Style) -> String {
    block(&result.host, result, style)
}

/// Returns the answers with equal ones grouped, in the order of their first node, with the nodes folded.
pub fn exec_grouped(results: &[ExecResult], style: &Style) -> String {
    let mut groups: Vec<(&ExecResult, Vec<&str>)> = Vec::new();
    for result in results {
        let same = |(first, _): &&mut (&ExecResult, Vec<&str>)| {
            first.rc == result.rc
                && first.stdout == result.stdout
                && first.stderr == result.stderr
                && first.error == result.error
        };
        match groups.iter_mut().find(same) {
            Some((_, hosts)) => hosts.push(&result.host),
            None => groups.push((result, vec![&result.host])),
        }
    }
    let text = |(first, hosts): &(&ExecResult, Vec<&str>)| {
        let label = match hosts.as_slice() {
            [only] => (*only).to_owned(),
            _ => format!("{} ({})", fold_names(hosts), count(hosts.len(), "node")),
        };
        block(&label, first, style)
    };
    groups.iter().map(text).collect()
}

/// Returns the answer of one node in one line (`exec -o`).
pub fn exec_line(result: &ExecResult, style: &Style) -> String {
    let escaped = |text: &str| visible_lines(text).trim_end().replace('\n', "\\n");
    let (role, text) = match (result.rc, &result.error) {
        (_, Some(error)) => (Role::Bad, format!("{} | {}", result.host, super::clean(error))),
        (None, None) => (Role::Bad, format!("{} | did not end", result.host)),
        (Some(rc), None) => {
            let role = if rc == 0 { Role::Good } else { Role::Bad };
            let stderr = escaped(&result.stderr);
            let stderr = if stderr.is_empty() { stderr } else { format!(" (stderr) {stderr}") };
            (role, format!("{} | rc={rc} | (stdout) {}{stderr}", result.host, escaped(&result.stdout)))
        }
    };
    format!("{}\n", style.paint(role, text))
}

fn block(label: &str, result: &ExecResult, style: &Style) -> String {
    let (role, head) = match (result.rc, &result.error) {
        (_, Some(error)) => (Role::Bad, format!("{label} | {}", super::clean(error))),
        (Some(0), None) => (Role::Good, format!("{label} | rc=0")),
        (Some(rc), None) => (Role::Bad, format!("{label} | rc={rc}")),
        (None, None) => (Role::Bad, format!("{label} | did not end")),
    };
    // The mark introduces output, and an error may have none.
    let printed =
        [&result.stdout, &result.stderr].into_iter().any(|text| !clean_block(text).trim_end().is_empty());
    let mark = if printed || result.rc.is_some() && result.error.is_none() { " >>" } else { "" };
    let mut out = style.paint(role, format!("{head}{mark}"));
    out.push('\n');
    for stream in [&result.stdout, &result.stderr] {
        let text = clean_block(stream);
        let text = text.trim_end_matches('\n');
        if !text.is_empty() {
            out.push_str(text);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(host: &str, rc: i32, stdout: &str) -> ExecResult {
        ExecResult {
            host: host.to_owned(),
            rc: Some(rc),
            stdout: stdout.to_owned(),
            stderr: String::new(),
            error: None,
        }
    }

    #[test]
    fn equal_answers_are_shown_once() {
        let mut results: Vec<_> =
            (1..=3).map(|n| answer(&format!("gpu{n:03}"), 0, "6.8.0-79-generic\n")).collect();
        results.push(answer("gpu004", 0, "6.8.0-60-generic\n"));
        results.push(ExecResult {
            rc: Some(127),
            stderr: "sh: 1: nvidia-smi: not found\n".into(),
            ..answer("gpu005", 0, "")
        });
        results.push(ExecResult {
            rc: None,
            error: Some("connection refused".into()),
            ..answer("gpu006", 0, "")
        });
        insta::assert_snapshot!(exec_grouped(&results, &Style::default()), @r"
        gpu[001-003] (3 nodes) | rc=0 >>
        6.8.0-79-generic
        gpu004 | rc=0 >>
        6.8.0-60-generic
        gpu005 | rc=127 >>
        sh: 1: nvidia-smi: not found
        gpu006 | connection refused
        ");
        assert_eq!(exec_one(&results[3], &Style::default()), "gpu004 | rc=0 >>\n6.8.0-60-generic\n");
    }
}
