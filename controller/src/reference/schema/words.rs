//! The meaning and the possible values of each key of plays, blocks and tasks.

use serde_json::{Value as Json, json};

use super::{boolean, drain, duration, one_or_many, template, text};

/// Returns the schema of a key, with its description; `None` for a key that is not in this list.
pub(super) fn word(name: &str) -> Option<Json> {
    let (mut schema, description) = described(name)?;
    if let Some(map) = schema.as_object_mut() {
        map.insert("description".to_owned(), json!(description));
    }
    Some(schema)
}

fn condition() -> Json {
    one_or_many(json!({"type": ["string", "boolean"]}))
}

fn words() -> Json {
    one_or_many(text())
}

fn number() -> Json {
    json!({"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^[0-9]+$"}, template()]})
}

/// Returns the schema of a number or share of the hosts.
fn amount() -> Json {
    json!({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^ *[0-9.]+ *%? *$"}, template()]})
}

fn vars() -> Json {
    json!({"anyOf": [{"type": "object"}, {"type": "null"}]})
}

fn tasks() -> Json {
    json!({"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/item"}}, {"type": "null"}]})
}

fn any() -> Json {
    json!({})
}

fn waves() -> Json {
    one_or_many(json!({"anyOf": [amount(), {"const": "canary"}]}))
}

#[expect(clippy::too_many_lines, reason = "one line a key")]
fn described(name: &str) -> Option<(Json, &'static str)> {
    Some(match name {
        "name" => (text(), "What people see while it runs."),
        "hosts" => (words(), "Hosts of the play: a group, a host, or a pattern such as `gpu:!spare`."),
        "become" => {
            (boolean(), "Whether to act as another user, which is root unless `become_user` says otherwise.")
        }
        "become_user" => (text(), "User to become."),
        "become_method" => (text(), "How to become another user: `sudo`."),
        "become_flags" => (text(), "Options for what becomes another user."),
        "become_exe" => (text(), "Program that becomes another user."),
        "remote_user" => (text(), "User to log in as."),
        "connection" => (text(), "How nodes are reached: `ssh` or `local`."),
        "port" => (number(), "Port to log in at."),
        "vars" => (vars(), "Variables, by name."),
        "vars_files" => (any(), "Files with variables, in order; later ones win."),
        "serial" => (waves(), "Sizes of the waves: numbers or percentages; the last one repeats."),
        "waves" => (
            waves(),
            "Sizes of the waves: `canary` (one node of each hardware class), numbers, percentages; the last repeats.",
        ),
        "max_unavailable" => {
            (amount(), "How many nodes may be out of service at once, as a number or a percentage.")
        }
        "max_fail_percentage" => (number(), "The play stops when more than this share of a wave has failed."),
        "max_failures" => (number(), "The run stops when more nodes than this have failed."),
        "rollout" => {
            (any(), "How the fleet is treated: waves, budgets, soak, window, drain, reboot, health gate.")
        }
        "keep" => (
            any(),
            "Nodes assert at each boot what the play declared of their GPUs: `true`, or parameters of `gpu_keep`.",
        ),
        "any_errors_fatal" => (boolean(), "One failure ends the play for all hosts."),
        "strategy" => (
            text(),
            "`linear`: hosts wait for one another after each task; `host_pinned` and `free`: each goes on alone.",
        ),
        "gather_facts" => {
            (boolean(), "Whether facts are read first: Ansible's common names and `gpufleet_facts`.")
        }
        "gather_subset" => (any(), "Which facts are read."),
        "gather_timeout" => (number(), "How long reading facts may take, in seconds."),
        "fact_path" => (text(), "Folder of local facts."),
        "environment" => {
            (one_or_many(json!({"anyOf": [{"type": "object"}, template()]})), "Environment of commands.")
        }
        "tags" => (words(), "Words by which `--tags` and `--skip-tags` choose."),
        "pre_tasks" => {
            (tasks(), "Tasks before those of `roles` and `tasks`; their handlers run before the next part.")
        }
        "tasks" => (tasks(), "What is done, in order."),
        "post_tasks" => (tasks(), "Tasks after all others; their handlers run at the end."),
        "handlers" => (tasks(), "Tasks that run once at the end of a part, where another one notified them."),
        "roles" => (
            json!({"anyOf": [{"type": "array", "items": {"type": ["string", "object"]}}, {"type": "null"}]}),
            "Roles whose tasks run before `tasks`.",
        ),
        "order" => (
            json!({"anyOf": [{"enum": ["inventory", "reverse_inventory", "sorted", "reverse_sorted", "shuffle"]}, template()]}),
            "In which order hosts are taken.",
        ),
        "ignore_unreachable" => (boolean(), "An unreachable host skips the task and goes on."),
        "ignore_errors" => (boolean(), "A failure is reported, and the host goes on."),
        "force_handlers" => (boolean(), "Handlers run also on hosts that failed."),
        "no_log" => (boolean(), "Nothing of its parameters and its result is shown or recorded."),
        "timeout" => (duration(), "How long it may take: `90`, `90s`, `20m`, `2h`."),
        "run_once" => (boolean(), "Only the first host does it; all get the result."),
        "throttle" => (number(), "How many hosts may do it at the same time."),
        "module_defaults" => (any(), "Parameters for kinds where a task does not give them."),
        "vars_prompt" => (any(), "Variables that a person is asked for."),
        "collections" => (any(), "Where modules are looked for; kinds are built in."),
        "debugger" => (text(), "When the debugger starts."),
        "when" => (condition(), "Conditions, all of which must hold; without braces."),
        "loop" => (
            json!({"anyOf": [{"type": "array"}, template()]}),
            "A list: the task runs once for each item, as `item`.",
        ),
        "loop_control" => (
            json!({"type": "object", "additionalProperties": false, "properties": {
                "loop_var": {"type": "string", "description": "Name of the variable in place of `item`."},
                "index_var": {"type": "string", "description": "Name of the variable with the number of the item."},
                "label": {"description": "What is shown in place of the whole item."},
                "pause": {"description": "Seconds between two items."},
                "extended": {"description": "Whether `ansible_loop` tells more about the loop."},
                "extended_allitems": {"description": "Whether `ansible_loop.allitems` is there."},
                "break_when": {"description": "Conditions that end the loop."},
            }}),
            "How the loop is run and shown.",
        ),
        "register" => (text(), "Variable that gets the result."),
        "changed_when" => (condition(), "When it counts as a change."),
        "failed_when" => (condition(), "When it counts as failed."),
        "until" => (condition(), "It is done again until this holds."),
        "retries" => (number(), "How often it is tried again at most."),
        "delay" => (number(), "Seconds between two tries."),
        "notify" => (words(), "Handlers to run where this changed something."),
        "listen" => (words(), "Topics that call a handler beside its name."),
        "args" => (
            json!({"anyOf": [{"type": ["object", "null"]}, template()]}),
            "Parameters of the kind, beside those written with it.",
        ),
        "delegate_to" => (text(), "Another host that does it; the result counts for this one."),
        "delegate_facts" => (boolean(), "Facts belong to the host that it is delegated to."),
        "local_action" => {
            (any(), "A task that the controller does; `delegate_to: localhost` is the newer form.")
        }
        "action" => (any(), "The kind as a value; writing it as a key is the newer form."),
        "async" => (number(), "Seconds that it may go on by itself on the node."),
        "poll" => (number(), "Seconds between two looks at it; 0 goes on at once."),
        "check_mode" => (boolean(), "Whether it only tells what it would do."),
        "diff" => (boolean(), "Whether the text changes of files are shown."),
        "on_interrupt" => (
            json!({"enum": ["hold", "rerun", "fail"]}),
            "What a resumed run does where the controller died while this ran.",
        ),
        "block" => (tasks(), "Tasks that belong together."),
        "rescue" => (tasks(), "Tasks that run where the block failed."),
        "always" => (tasks(), "Tasks that run in any case."),
        "with_items" => (any(), "The items of a loop, lists in it flattened by one level."),
        other if other.starts_with("with_") => (any(), "The items of a loop."),
        // Keys of `rollout` only.
        "failure_domain" => (
            any(),
            "Variable that tells what fails together, such as the rack; or `{label: KEY}`, of the nodes at Kubernetes.",
        ),
        "max_unavailable_per_domain" => {
            (amount(), "How many nodes of one failure domain may be out at once.")
        }
        "max_unreachable" => (amount(), "The run stops when more nodes than this cannot be reached."),
        "soak" => (duration(), "How long a wave is watched before the next begins."),
        "window" => (any(), "When nodes may be disturbed, such as `Sat 02:00-06:00 Europe/Berlin`."),
        "drain" => (drain::drain(), "How nodes are taken out of service and given back."),
        "reboot" => (drain::reboot(), "How nodes are rebooted, and how long that may take."),
        "health_gate" => (any(), "Checks that must hold before a node is given back."),
        "power_cycle" => (any(), "How a node that does not come back is power-cycled."),
        _ => return None,
    })
}
