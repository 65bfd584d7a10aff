//! Commands that a play's policy runs around its nodes, rendered for one node.
//!
//! Owns which variables such a command sees and how its failure is told. What a command was rendered to is never shown:
//! it may hold secrets that the playbook only names. Invariant: a node's word is never read by this machine's shell
//! ([`inert`]).

use std::{collections::HashMap, sync::Arc};

use crate::{
    engine::ports::runner::Runner,
    engine::{host::HostState, ports::confirm::Confirm},
    interpreter::HostContext,
    playbook::{Play, Policy, PowerCycle},
    template::{
        self, Dict, Scope, TemplateError, Value,
        inert::{self, Guard},
    },
};

/// The longest last line of a command that is shown, in characters.
const SHOWN: usize = 300;

/// The commands of one play, and what they are rendered with.
pub(crate) struct Hooks {
    policy: Arc<Policy>,
    /// `vars_files` and `vars` of the play.
    vars: [Arc<Dict>; 2],
    contexts: Arc<HashMap<String, Arc<HostContext>>>,
    /// Runs those of this machine.
    pub(crate) runner: Arc<dyn Runner>,
    /// This run's id.
    pub(crate) run: String,
    /// Whom a pause asks.
    pub(crate) person: Arc<dyn Confirm>,
}

impl Hooks {
    pub(crate) fn new(
        play: &Play,
        contexts: Arc<HashMap<String, Arc<HostContext>>>,
        runner: Arc<dyn Runner>,
        run: String,
        person: Arc<dyn Confirm>,
    ) -> Self {
        let vars = [Arc::clone(&play.file_vars), Arc::clone(&play.vars)];
        Self { policy: Arc::clone(&play.policy), vars, contexts, runner, run, person }
    }

    /// Commands of the health gate, as they are written.
    pub(crate) fn gates(&self) -> Vec<Value> {
        self.policy.gate_commands()
    }

    pub(crate) fn power_cycle(&self) -> Option<&PowerCycle> {
        self.policy.power_cycle.as_ref()
    }

    /// A command for `sh -c`, for this node.
    ///
    /// # Errors
    /// Why there is none, ready to be shown.
    pub(crate) fn line(&self, command: &Value, host_state: &HostState) -> Result<String, String> {
        let context = self.contexts.get(&host_state.name).cloned().unwrap_or_default();
        let [files, play] = &self.vars;
        let rendered = |set: &Arc<Dict>, facts: &Arc<Dict>| {
            let layers: Vec<Arc<Dict>> =
                [&context.extra, set, files, play, facts, &context.vars, &context.magic]
                    .into_iter()
                    .filter(|layer| !layer.is_empty())
                    .map(Arc::clone)
                    .collect();
            let scope = Scope::new(layers);
            template::watch(|| {
                let rendered = template::resolve(command, &scope)?;
                Ok(if rendered.has_unknown() { None } else { Some(rendered.to_text()) })
            })
        };
        let (of_node, facts) = (&host_state.vars.set, &host_state.vars.facts);
        let (text, has_secret) = inert::line(|| rendered(of_node, facts));
        // Why refused: a command line stands in the list of processes, and what it prints in messages.
        if has_secret {
            return Err("a vault value goes into it, which others could read; let it read the secret itself"
                .to_owned());
        }
        // Why rendered again: what came from the node shows in the line only where it is told apart from the rest.
        let of_nodes = |dict| inert::masked(dict, Guard::Shell);
        let (masked, _) = inert::masked_text(Guard::Shell, || rendered(&of_nodes(of_node), &of_nodes(facts)));
        let inert = match (&text, &masked) {
            (Ok(Some(line)), Ok(Some(masked))) => inert::is_inert(line, masked),
            (Ok(Some(_)), _) => false,
            (Ok(None) | Err(_), _) => true,
        };
        if !inert {
            return Err(inert::REFUSED.to_owned());
        }
        let rendered = text.map_err(|error: TemplateError| {
            format!("its template cannot be rendered: {}", error.message())
        })?;
        let Some(line) = rendered else { return Err("its template asks for what is not known".to_owned()) };
        match line.trim().is_empty() {
            true => Err("its template is empty for this node".to_owned()),
            false => Ok(line),
        }
    }
}

/// The last line that a command printed, errors first; with the colon that goes before it.
pub(crate) fn last_words(stderr: &str, stdout: &str) -> String {
    let last = |text: &str| text.lines().map(str::trim).rfind(|line| !line.is_empty()).map(str::to_owned);
    let Some(line) = last(stderr).or_else(|| last(stdout)) else { return String::new() };
    let line: String = line.chars().filter(|c| !c.is_control()).take(SHOWN).collect();
    format!(": {line}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{drain::LocalRunner, playbook::Program};

    fn hooks(text: &str) -> Hooks {
        let files: HashMap<String, String> = [("play.yml".to_owned(), text.to_owned())].into();
        let program = Program::load(&["play.yml"], &files).unwrap_or_else(|errors| panic!("{errors}"));
        let mut vars = Dict::default();
        vars.insert("bmc", template::Value::text("bmc-{{ inventory_hostname }}"));
        vars.insert("bmc_password", template::Value::Secret(Arc::new(template::Value::text("planted"))));
        let mut magic = Dict::default();
        magic.insert("inventory_hostname", template::Value::text("gpu001"));
        let context = HostContext { vars: Arc::new(vars), magic: Arc::new(magic), ..HostContext::default() };
        let contexts = Arc::new([("gpu001".to_owned(), Arc::new(context))].into());
        let person = Arc::new(crate::engine::ports::confirm::Nobody);
        Hooks::new(&program.plays[0], contexts, Arc::new(LocalRunner), "RUN".to_owned(), person)
    }

    fn line(gate: &str, host: &str) -> Result<String, String> {
        let text = format!(
            "- hosts: all\n  vars: {{ok: /opt/ok}}\n  rollout:\n    health_gate: [{{command: \"{gate}\"}}]\n"
        );
        let hooks = hooks(&text);
        hooks.line(&hooks.gates()[0], &HostState::new(host.to_owned()))
    }

    #[test]
    fn a_command_sees_the_variables_of_its_host_and_play() {
        assert_eq!(line("{{ ok }} {{ bmc }}", "gpu001").unwrap(), "/opt/ok bmc-gpu001");
        assert_eq!(line("true", "gpu002").unwrap(), "true");
        let error = line("{{ bmc }}", "gpu002").unwrap_err();
        assert!(error.starts_with("its template cannot be rendered: ") && error.contains("bmc"), "{error}");
        assert!(line("{{ '' }}", "gpu001").unwrap_err().contains("empty"));
        let error = line("bmctool {{ bmc_password }}", "gpu001").unwrap_err();
        assert!(error.contains("a vault value goes into it") && !error.contains("planted"), "{error}");
    }

    #[test]
    fn what_a_node_says_is_no_command_of_ours() {
        let line = |gate: &str, said: &str| {
            let hooks = hooks(&format!(
                "- hosts: all\n  vars: {{both: 'a && b'}}\n  rollout:\n    health_gate: [{{command: \"{gate}\"}}]\n"
            ));
            let mut host_state = HostState::new("gpu001".to_owned());
            let mut facts = Dict::default();
            facts.insert("ansible_hostname", template::Value::str(said));
            facts.insert(
                "nested",
                template::Value::map([("list", template::Value::list(vec![template::Value::str(said)]))]),
            );
            host_state.vars.facts = Arc::new(facts);
            hooks.line(&hooks.gates()[0], &host_state)
        };
        let bad = "$(touch${IFS}/tmp/x)";
        for gate in [
            "ping {{ ansible_hostname }}",
            "ping {{ nested.list[0] | upper }}",
            "ping '{{ ansible_hostname }}'{{ ansible_hostname }}",
            "ping {{ nested }}",
            "ping '{{ ansible_hostname }}'",
        ] {
            let error = line(gate, if gate.ends_with("'{{ ansible_hostname }}'") { "'; id; '" } else { bad });
            assert!(error.as_ref().is_err_and(|why| why.contains("| quote")), "{gate}: {error:?}");
        }
        assert_eq!(
            line("ping {{ ansible_hostname }}", "gpu001.example.com").unwrap(),
            "ping gpu001.example.com"
        );
        assert_eq!(
            line("{{ both }} {{ ansible_hostname | quote }}", bad).unwrap(),
            format!("a && b '{bad}'")
        );
        assert_eq!(line("{{ both }}{{ ' -v' if ansible_hostname != 'x' }}", bad).unwrap(), "a && b -v");
    }

    #[test]
    fn the_last_words_are_one_line() {
        assert_eq!(last_words("a\nb \n\n", "c"), ": b");
        assert_eq!(last_words(" \n", "x\nc\u{7}\n"), ": c");
        assert_eq!(last_words("", ""), "");
    }
}
