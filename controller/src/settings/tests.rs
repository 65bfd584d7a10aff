use proptest::prelude::*;

use super::*;
use crate::diagnostic::render;

fn read<'a>(
    toml: Option<&'a str>,
    cfg: Option<&'a str>,
    environment: &'a [(String, String)],
) -> Result<Settings, String> {
    let sources = Sources {
        environment,
        toml: toml.map(|text| File { path: "conf/gpufleet.toml", text }),
        ansible_cfg: cfg.map(|text| File { path: "./ansible.cfg", text }),
        home: Some(Path::new("/home/ops")),
    };
    Settings::read(&sources).map_err(|errors| render(&errors, false))
}

fn shown(settings: &Settings) -> String {
    let line = |key: &Key| {
        let given = settings.get(key.name)?;
        Some(format!("{} = {} ({})\n", key.name, given.value, given.origin))
    };
    KEYS.iter().filter_map(line).collect()
}

fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn every_setting_has_one_name() {
    for (at, key) in KEYS.iter().enumerate() {
        assert!(KEYS.iter().skip(at + 1).all(|other| other.name != key.name), "{}", key.name);
        assert!(!key.about.is_empty() && !key.default.is_empty(), "{}", key.name);
    }
}

#[test]
fn the_environment_wins_over_gpufleet_toml_over_ansible_cfg() {
    let cfg = "[defaults]\nforks = 5\nremote_user = anne\ntimeout = 30\n";
    let toml = "forks = 6\nuser = \"bob\"\n";
    let environment = variables(&[("GPUFLEET_FORKS", "7"), ("ANSIBLE_FORKS", "8"), ("PATH", "/bin")]);
    insta::assert_snapshot!(shown(&read(Some(toml), Some(cfg), &environment).unwrap()), @r"
    user = bob (conf/gpufleet.toml:2)
    forks = 7 (GPUFLEET_FORKS)
    connect_timeout = 30s (./ansible.cfg:4)
    ");
}

#[test]
fn ansible_cfg_is_read_as_ansible_reads_it() {
    let cfg = "# ours\n[defaults]\ninventory = ./inv, hosts/prod ; both\nForks: 20\nroles_path=~/roles:${EXTRA}/roles\n   :more\n\
               host_key_checking = False\nprivate_key_file = $NOWHERE/key\nnocolor=1\ngathering = smart\ncallback_whitelist =\n\
               vault_identity_list = dev@~/dev, prod@prompt\n\n[privilege_escalation]\nbecome=yes\nbecome_method=su\n\
               [ssh_connection]\nssh_args = -C -o ControlMaster=auto\npipelining = True\n";
    let environment = variables(&[("EXTRA", "/opt")]);
    let settings = read(None, Some(cfg), &environment).unwrap();
    insta::assert_snapshot!(shown(&settings), @r"
    inventory = inv, hosts/prod (./ansible.cfg:3)
    roles_path = /home/ops/roles, /opt/roles, more (./ansible.cfg:5)
    private_key = $NOWHERE/key (./ansible.cfg:8)
    host_key_checking = false (./ansible.cfg:7)
    ssh_args = -C -o ControlMaster=auto (./ansible.cfg:18)
    forks = 20 (./ansible.cfg:4)
    become = true (./ansible.cfg:15)
    vault_id = dev@/home/ops/dev, prod@prompt (./ansible.cfg:12)
    color = never (./ansible.cfg:9)
    ");
    insta::assert_snapshot!(settings.ignored.join("; "), @"[defaults] gathering; [defaults] callback_whitelist; [privilege_escalation] become_method = su; [ssh_connection] pipelining");
    assert_eq!(settings.roles_path, ["/home/ops/roles", "/opt/roles", "more"]);
}

#[test]
fn mappings_that_would_be_merged_are_refused() {
    let cfg = "[defaults]\nhash_behaviour = merge\n";
    insta::assert_snapshot!(read(None, Some(cfg), &[]).unwrap_err(), @r"
    error: `hash_behaviour = merge` is not done: the later mapping takes the place of the earlier
      --> ./ansible.cfg:2:1
       |
     2 | hash_behaviour = merge
       | ^^^^^^^^^^^^^^^^^^^^^^
    help: merge where it is meant, with `{{ one | combine(other) }}`, and take the line out
    ");
    assert!(read(None, Some(&cfg.replace("merge", "replace")), &[]).is_ok());
    let variable = |value: &str| read(None, None, &variables(&[("ANSIBLE_HASH_BEHAVIOUR", value)]));
    insta::assert_snapshot!(variable("merge").unwrap_err(), @r"
    error: `ANSIBLE_HASH_BEHAVIOUR=merge` is not done: the later mapping takes the place of the earlier
    help: merge where it is meant, with `{{ one | combine(other) }}`, and unset the variable
    ");
    assert!(variable("replace").is_ok());
}

#[test]
fn paths_are_those_of_the_file_that_names_them() {
    let toml = "inventory = [\"inv\", \"/etc/hosts.yml\", \"a,b,\"]\nvault_password_file = \"~/pw\"\nssh_config = \"none\"\n";
    let settings = read(Some(toml), None, &[]).unwrap();
    assert_eq!(settings.list("inventory").unwrap(), ["conf/inv", "/etc/hosts.yml", "a,b,"]);
    assert_eq!(settings.list("vault_password_file").unwrap(), ["/home/ops/pw"]);
    assert_eq!(settings.text("ssh_config"), Some("none"));
}

#[test]
fn mistakes_are_told_together_with_their_places() {
    let toml = "forkz = 5\nforks = \"many\"\nbecome = \"yes\"\nconnect_timeout = \"soon\"\n[defaults]\ninventory = \"x\"\n";
    insta::assert_snapshot!(read(Some(toml), None, &[]).unwrap_err(), @r#"
    error: unknown setting `forkz`
      --> conf/gpufleet.toml:1:1
       |
     1 | forkz = 5
       | ^^^^^ no setting of this name
    help: did you mean `forks`?
    error: `forks` wants a number above 0
      --> conf/gpufleet.toml:2:9
       |
     2 | forks = "many"
       |         ^^^^^^
    help: it is for: nodes worked on at the same time (-f)
    error: `become` wants true or false
      --> conf/gpufleet.toml:3:10
       |
     3 | become = "yes"
       |          ^^^^^
    help: it is for: become another user where a play does not say (-b)
    error: `connect_timeout` wants a duration such as "90s" or "20m"
      --> conf/gpufleet.toml:4:19
       |
     4 | connect_timeout = "soon"
       |                   ^^^^^^
    help: it is for: how long connecting may take (-T)
    error: unknown setting `defaults`
      --> conf/gpufleet.toml:5:2
       |
     5 | [defaults]
       |  ^^^^^^^^ no setting of this name
    help: `gpufleet config` lists all settings
    "#);
    insta::assert_snapshot!(read(Some("forks = \n"), None, &[]).unwrap_err(), @r"
    error: string values must be quoted, expected literal string
      --> conf/gpufleet.toml:1:9
       |
     1 | forks =
       |         ^
    help: write `name = value`, texts in double quotes
    ");
    let cfg = "forks = 3\n[defaults]\nforks = x\nforks = 4\nremote_user\n";
    insta::assert_snapshot!(read(None, Some(cfg), &variables(&[("ANSIBLE_BECOME", "perhaps")])).unwrap_err(), @r#"
    error: the environment variable `ANSIBLE_BECOME` wants true or false, got "perhaps"
    help: it stands for the setting `become`: become another user where a play does not say (-b)
    error: this line stands before any [section]
      --> ./ansible.cfg:1:1
       |
     1 | forks = 3
       | ^^^^^^^^^
    help: Ansible does not read such a file either
    error: `forks` of [defaults] wants a number above 0, got "x"
      --> ./ansible.cfg:3:1
       |
     3 | forks = x
       | ^^^^^^^^^
    error: `forks` stands twice in [defaults]
      --> ./ansible.cfg:4:1
       |
     4 | forks = 4
       | ^^^^^^^^^
    error: this line is no `name = value`
      --> ./ansible.cfg:5:1
       |
     5 | remote_user
       | ^^^^^^^^^^^
    help: Ansible does not read such a file either
    "#);
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(toml in "\\PC{0,80}", cfg in "(\\[defaults\\]\n)?[a-z=:;# \n\\[\\]é]{0,80}") {
        let _ = read(Some(&toml), Some(&cfg), &[]);
    }

    #[test]
    fn what_is_set_is_read_back(forks in 1_usize..100_000, seconds in 1_u64..100_000, become_root: bool) {
        let toml = format!("forks = {forks}\ntask_timeout = \"{seconds}s\"\nbecome = {become_root}\n");
        let cfg = format!("[defaults]\nforks={forks}\n[privilege_escalation]\nbecome = {become_root}\n");
        let settings = read(Some(&toml), None, &[]).unwrap();
        prop_assert_eq!(settings.count("forks"), Some(forks));
        prop_assert_eq!(settings.seconds("task_timeout"), Some(seconds));
        prop_assert_eq!(settings.flag("become"), Some(become_root));
        let settings = read(None, Some(&cfg), &[]).unwrap();
        prop_assert_eq!((settings.count("forks"), settings.flag("become")), (Some(forks), Some(become_root)));
    }
}
