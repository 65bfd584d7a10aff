//! `package_facts` and `service_facts`: installed packages and services, as Ansible's facts.

use std::{collections::HashMap, fs};

use gpufleet_protocol::tasks::{PackageFacts, PackageStrategy, ServiceFacts};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    tasks::tool,
    world::Effect,
};

/// Output limit in bytes, enough for a node with every package.
const LIMIT: usize = 32 * 1024 * 1024;
/// Packages in one question to apt; more would be too long for a command line.
const PART: usize = 2000;

/// Implements what a kind that only reads leaves out.
macro_rules! reads_only {
    () => {
        type Step = ();

        fn plan(&self, _: &Self::State) -> Result<Plan<()>, Trouble> {
            Ok(Plan::default())
        }

        fn after(&self, _: &Self::State, _: &Plan<()>) -> Vec<Effect> {
            Vec::new()
        }

        fn apply(&self, _: &Node<'_>, _: &Self::State, _: &Plan<()>) -> Result<Map<String, Value>, Trouble> {
            Ok(Map::new())
        }
    };
}

fn facts(name: &str, value: Map<String, Value>) -> Map<String, Value> {
    let facts: Map<String, Value> = [(name.to_owned(), Value::Object(value))].into_iter().collect();
    [("ansible_facts".to_owned(), Value::Object(facts))].into_iter().collect()
}

fn asked(node: &Node<'_>, program: &str, arguments: &[&str]) -> Result<String, Trouble> {
    let path = tool::find(node, program, "it is asked for facts")?;
    let done = tool::ask(node, &tool::run(node, path).args(arguments).limit(LIMIT))?;
    match done.exit.success() {
        true => Ok(done.stdout()),
        false => Err(Trouble::io(done.complaint(program))),
    }
}

/// Adds what earlier tasks of a prediction install or remove.
fn assume(node: &Node<'_>, source: &str, all: &mut Map<String, Value>) -> Result<(), Trouble> {
    for (name, version) in node.world.packages() {
        match version {
            None => {
                all.remove(&name);
            }
            // Which version comes is known only in the run.
            Some(version) if version.is_empty() => return Err(Trouble::Possible),
            Some(version) => {
                all.insert(name.clone(), json!([{"name": name, "version": version, "source": source}]));
            }
        }
    }
    Ok(())
}

/// Parses `apt-cache policy`: the origin of each source, by its line.
fn origins(text: &str) -> HashMap<String, String> {
    let mut all = HashMap::new();
    let mut source = "";
    for line in text.lines().map(str::trim) {
        if let Some(release) = line.strip_prefix("release ") {
            let origin = release.split(',').find_map(|part| part.strip_prefix("o="));
            all.insert(source.to_owned(), origin.unwrap_or_default().to_owned());
        } else if line.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
            source = line.split_once(' ').map_or("", |(_, source)| source.trim());
        }
    }
    all
}

/// Parses `apt-cache policy NAME…`: the first source of each installed version.
fn sources(text: &str) -> HashMap<&str, &str> {
    let mut all = HashMap::new();
    let (mut name, mut installed) = ("", false);
    for line in text.lines() {
        let body = line.trim();
        if !line.starts_with(' ') {
            (name, installed) = (body.trim_end_matches(':'), false);
        } else if body.starts_with("*** ") {
            installed = true;
        } else if installed && let Some((_, source)) = body.split_once(' ') {
            all.entry(name).or_insert(source.trim());
            installed = false;
        }
    }
    all
}

fn of_apt(node: &Node<'_>) -> Result<Map<String, Value>, Trouble> {
    let format = "-f=${Package}\\t${Architecture}\\t${db:Status-Status}\\t${Version}\\t${Section}\\n";
    let text = asked(node, "dpkg-query", &["-W", format])?;
    let native = asked(node, "dpkg", &["--print-architecture"])?.trim().to_owned();
    let mut rows = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        if let [name, arch, "installed" | "triggers-pending" | "triggers-awaited", version, section] = *fields
        {
            // As apt calls it: with its architecture only if that is a foreign one.
            let name =
                if arch == native || arch == "all" { name.to_owned() } else { format!("{name}:{arch}") };
            rows.push((name, arch, version, section));
        }
    }
    let mut policy = String::new();
    let mut named = HashMap::new();
    if node.roots.tool("apt-cache").is_some() {
        named = origins(&asked(node, "apt-cache", &["policy"])?);
        for part in rows.chunks(PART) {
            let mut arguments = vec!["policy"];
            arguments.extend(part.iter().map(|(name, ..)| name.as_str()));
            policy.push_str(&asked(node, "apt-cache", &arguments)?);
        }
    }
    let from = sources(&policy);
    let mut all = Map::new();
    for (name, arch, version, section) in &rows {
        let origin = from.get(name.as_str()).and_then(|source| named.get(*source));
        let one = json!({
            "name": name,
            "version": version,
            "arch": arch,
            "category": section,
            "origin": origin.map_or("", String::as_str),
            "source": "apt",
        });
        all.insert(name.clone(), json!([one]));
    }
    assume(node, "apt", &mut all)?;
    Ok(all)
}

fn of_rpm(node: &Node<'_>) -> Result<Map<String, Value>, Trouble> {
    let format = "%{NAME}\\t%{VERSION}\\t%{RELEASE}\\t%{EPOCH}\\t%{ARCH}\\n";
    let text = asked(node, "rpm", &["-qa", "--qf", format])?;
    let mut all: Map<String, Value> = Map::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, version, release, epoch, arch] = *fields else { continue };
        let one = json!({
            "name": name,
            "version": version,
            "release": release,
            "epoch": epoch.parse::<u64>().ok(),
            "arch": (arch != "(none)").then_some(arch),
            "source": "rpm",
        });
        match all.get_mut(name).and_then(Value::as_array_mut) {
            Some(versions) => versions.push(one),
            None => {
                all.insert(name.to_owned(), json!([one]));
            }
        }
    }
    assume(node, "rpm", &mut all)?;
    Ok(all)
}

impl NodeKind for PackageFacts {
    type State = Map<String, Value>;

    reads_only!();

    fn observe(&self, node: &Node<'_>) -> Result<Self::State, Trouble> {
        let mut managers: Vec<&str> = Vec::new();
        for name in &self.manager {
            let names: &[&str] = match name.to_ascii_lowercase().as_str() {
                "auto" => &["apt", "rpm"],
                "apt" => &["apt"],
                _ => &["rpm"],
            };
            managers.extend(names.iter().filter(|name| !managers.contains(name)).collect::<Vec<_>>());
        }
        let mut packages = Map::new();
        let mut found = 0;
        for manager in &managers {
            let program = if *manager == "apt" { "dpkg-query" } else { "rpm" };
            if node.roots.tool(program).is_none() || found > 0 && self.strategy == PackageStrategy::First {
                continue;
            }
            found += 1;
            packages.extend(if *manager == "apt" { of_apt(node)? } else { of_rpm(node)? });
        }
        if found == 0 {
            return Err(Trouble::invalid(format!(
                "Could not detect a supported package manager from the following list: {}",
                managers.join(", ")
            )));
        }
        Ok(packages)
    }

    fn data(&self, packages: &Self::State) -> Map<String, Value> {
        facts("packages", packages.clone())
    }
}

/// States that systemd's columns tell apart from the rest.
const BAD: [&str; 3] = ["not-found", "masked", "failed"];

fn service(name: &str, state: &str, status: Option<&str>, source: &str) -> Value {
    let all = [("name", Some(name)), ("state", Some(state)), ("source", Some(source)), ("status", status)];
    all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value?)))).collect()
}

/// Parses `systemctl list-units`, as Ansible does: name, load, active, sub, description.
fn units(text: &str) -> Map<String, Value> {
    let mut all = Map::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [name, _, active, sub, ..] = *fields else { continue };
        if !name.ends_with(".service") {
            continue;
        }
        let columns = fields.get(..fields.len().saturating_sub(1)).unwrap_or_default();
        let status = BAD.into_iter().find(|bad| columns.contains(bad)).unwrap_or(active);
        let state = if sub == "running" { "running" } else { "stopped" };
        all.insert(name.to_owned(), service(name, state, Some(status), "systemd"));
    }
    all
}

fn of_systemd(node: &Node<'_>) -> Result<Map<String, Value>, Trouble> {
    let plain = ["--no-pager", "--no-legend", "--type", "service", "--all"];
    let ask = |verb: &'static str, more: &[&'static str]| {
        let words: Vec<&str> = [verb].into_iter().chain(plain).chain(more.iter().copied()).collect();
        asked(node, "systemctl", &words)
    };
    let mut all = units(&ask("list-units", &["--plain"])?);
    let files = ask("list-unit-files", &[])?;
    let mut unknown: Vec<(&str, &str)> = Vec::new();
    for line in files.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(status)) = (words.next(), words.next()) else { continue };
        match all.get(name) {
            Some(known) => {
                let seen = known.get("status").and_then(Value::as_str);
                if !seen.is_some_and(|seen| BAD.contains(&seen)) {
                    let state = known.get("state").and_then(Value::as_str).unwrap_or_default().to_owned();
                    all.insert(name.to_owned(), service(name, &state, Some(status), "systemd"));
                }
            }
            None if name.ends_with(".service") => unknown.push((name, status)),
            None => {}
        }
    }
    // A template has no state; systemctl would refuse the whole question for one.
    let (templates, asked_for): (Vec<_>, Vec<_>) =
        unknown.into_iter().partition(|(name, _)| name.ends_with("@.service"));
    for (name, status) in templates {
        all.insert(name.to_owned(), service(name, "unknown", Some(status), "systemd"));
    }
    if !asked_for.is_empty() {
        let mut words = vec!["show", "--property=ActiveState"];
        words.extend(asked_for.iter().map(|(name, _)| *name));
        let text = asked(node, "systemctl", &words)?;
        let states = text.lines().filter_map(|line| line.strip_prefix("ActiveState="));
        for ((name, status), state) in asked_for.iter().zip(states) {
            all.insert((*name).to_owned(), service(name, state, Some(status), "systemd"));
        }
    }
    Ok(all)
}

/// Adds the scripts of /etc/init.d, which Ansible lists beside their units. They are not run: systemd knows their
/// state.
fn add_scripts(node: &Node<'_>, all: &mut Map<String, Value>) -> Result<(), Trouble> {
    if node.roots.tool("service").is_none() || node.roots.tool("chkconfig").is_some() {
        return Ok(());
    }
    for name in node.world.names(&node.roots.path("/etc/init.d"))? {
        let Some(unit) = all.get(&format!("{name}.service")) else { continue };
        let state = match unit.get("state").and_then(Value::as_str) {
            Some("running" | "active") => "running",
            _ => "stopped",
        };
        all.insert(name.clone(), service(&name, state, None, "sysv"));
    }
    Ok(())
}

impl NodeKind for ServiceFacts {
    type State = Map<String, Value>;

    reads_only!();

    fn observe(&self, node: &Node<'_>) -> Result<Self::State, Trouble> {
        if fs::metadata(node.roots.path("/run/systemd/system")).is_err() {
            return Ok(Map::new());
        }
        let mut all = of_systemd(node)?;
        add_scripts(node, &mut all)?;
        Ok(all)
    }

    fn data(&self, services: &Self::State) -> Map<String, Value> {
        if services.is_empty() {
            let msg = "Failed to find any services. This can be due to privileges or some other configuration issue.";
            let data = [("skipped".to_owned(), json!(true)), ("msg".to_owned(), json!(msg))];
            return data.into_iter().collect();
        }
        facts("services", services.clone())
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::Bench;

    #[test]
    fn packages_of_apt_have_their_origin() {
        let bench = Bench::new();
        bench.script(
            "usr/bin/dpkg-query",
            "#!/bin/sh\nprintf 'cuda\\tamd64\\tinstalled\\t12.4-1\\tmisc\\nlibc6\\ti386\\tinstalled\\t2.36\\tlibs\\nold\\tamd64\\tconfig-files\\t1\\tlibs\\n'\n",
        );
        bench.script("usr/bin/dpkg", "#!/bin/sh\necho amd64\n");
        bench.script(
            "usr/bin/apt-cache",
            "#!/bin/sh\n[ $# = 1 ] && { printf 'Package files:\\n 100 /var/lib/dpkg/status\\n     release a=now\\n 500 http://a stable/main amd64 Packages\\n     release v=12,o=NVIDIA,a=stable\\n     origin a\\n'; exit; }\n\
             printf 'cuda:\\n  Installed: 12.4-1\\n  Version table:\\n     12.5-1 500\\n        500 http://b x\\n *** 12.4-1 500\\n        500 http://a stable/main amd64 Packages\\n        100 /var/lib/dpkg/status\\n'\n",
        );
        let task: PackageFacts = serde_json::from_value(json!({})).unwrap();
        let outcome = bench.run(&task, Mode::Apply);
        assert_eq!(outcome.status, OpStatus::Ok, "{outcome:?}");
        let packages = &outcome.data["ansible_facts"]["packages"];
        assert_eq!(
            packages["cuda"],
            json!([{"name": "cuda", "version": "12.4-1", "arch": "amd64", "category": "misc", "origin": "NVIDIA", "source": "apt"}])
        );
        assert_eq!(packages["libc6:i386"][0]["origin"], "");
        assert_eq!(packages.as_object().unwrap().len(), 2);
        bench.overlay.assume([
            Effect::Package { name: "cuda".to_owned(), version: None },
            Effect::Package { name: "new".to_owned(), version: Some("1".to_owned()) },
        ]);
        let predicted = bench.run(&task, Mode::Predict);
        let predicted = &predicted.data["ansible_facts"]["packages"];
        let mut names: Vec<&String> = predicted.as_object().unwrap().keys().collect();
        names.sort();
        assert_eq!(names, ["libc6:i386", "new"]);
        bench.overlay.assume([Effect::Package { name: "later".to_owned(), version: Some(String::new()) }]);
        assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Possible);
    }

    #[test]
    fn packages_of_rpm_may_have_several_versions() {
        let bench = Bench::new();
        bench.script(
            "usr/bin/rpm",
            "#!/bin/sh\nprintf 'kernel\\t5.14\\t1.el9\\t(none)\\tx86_64\\nkernel\\t5.14\\t2.el9\\t(none)\\tx86_64\\ngpg-pubkey\\tab\\tcd\\t(none)\\t(none)\\nbind\\t9\\t1\\t32\\tnoarch\\n'\n",
        );
        let task: PackageFacts = serde_json::from_value(json!({"manager": "dnf"})).unwrap();
        let outcome = bench.run(&task, Mode::Apply);
        let packages = &outcome.data["ansible_facts"]["packages"];
        assert_eq!(packages["kernel"].as_array().unwrap().len(), 2);
        assert_eq!(packages["bind"][0]["epoch"], 32);
        assert_eq!(
            (&packages["gpg-pubkey"][0]["arch"], &packages["kernel"][0]["epoch"]),
            (&Value::Null, &Value::Null)
        );
        let apt: PackageFacts = serde_json::from_value(json!({"manager": "apt"})).unwrap();
        assert!(matches!(bench.run(&apt, Mode::Apply).status, OpStatus::Failed { .. }));
    }

    const SYSTEMCTL: &str = r#"#!/bin/sh
case "$1" in
list-units) echo 'ssh.service loaded active running OpenBSD Secure Shell server
gone.service not-found inactive dead gone.service
bad.service loaded failed failed A service that fails
once.service loaded active exited Runs once';;
list-unit-files) echo 'ssh.service enabled enabled
getty@.service enabled enabled
idle.service disabled enabled
bad.service enabled enabled';;
show) [ "$3" = idle.service ] && echo ActiveState=inactive;;
esac
"#;

    #[test]
    fn services_are_those_of_ansible() {
        let bench = Bench::new();
        let task = ServiceFacts {};
        assert_eq!(bench.run(&task, Mode::Apply).data["skipped"], true);
        bench.script("usr/bin/systemctl", SYSTEMCTL);
        bench.script("usr/sbin/service", "#!/bin/sh\nexit 1\n");
        bench.write("etc/init.d/ssh", "");
        bench.write("run/systemd/system/x", "");
        let outcome = bench.run(&task, Mode::Apply);
        let services = &outcome.data["ansible_facts"]["services"];
        for (name, state, status) in [
            ("ssh.service", "running", "enabled"),
            ("gone.service", "stopped", "not-found"),
            ("bad.service", "stopped", "failed"),
            ("once.service", "stopped", "active"),
            ("getty@.service", "unknown", "enabled"),
            ("idle.service", "inactive", "disabled"),
        ] {
            let wanted = json!({"name": name, "state": state, "status": status, "source": "systemd"});
            assert_eq!(services[name], wanted);
        }
        assert_eq!(services["ssh"], json!({"name": "ssh", "state": "running", "source": "sysv"}));
    }
}
