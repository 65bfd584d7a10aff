//! What roles are given, against what they say that they take.

use super::*;

/// What a check says of an option with this value; nothing where all is well.
fn verdict(option: &str, value: &str) -> String {
    let text = format!(
        "- hosts: all\n  tasks:\n    - {{name: t, validate_argument_spec: {{argument_spec: {{x: {option}}}, provided_arguments: {{x: {value}}}}}}}\n"
    );
    let story = story(&text, &[]);
    let message = story.reports[0].message.clone().unwrap_or_default();
    match message.strip_prefix("Validation of arguments failed:\n") {
        Some(why) => why.to_owned(),
        None => {
            assert_eq!(message, "The arg spec validation passed");
            String::new()
        }
    }
}

#[test]
fn values_are_taken_as_ansibles_modules_take_them() {
    for (wanted, fits, refused) in [
        ("int", "5; -5; '5'; ' -7 '", "'5.5'; x; true; [1]; 5.5"),
        ("float", "1.5; 2; '1.5'; ' 3 '", "x; true; [1]"),
        ("bool", "true; 0; 1; 'yes'; 'Off'; 't'; '0'", "2; maybe; [true]; 0.5"),
        ("list", "[1]; 'a,b'; 5", "true; {a: 1}"),
        ("dict", "{a: 1}; ' {\"a\": 1}'; a=1", "a; [1]; 5"),
        ("str", "x; 5; true; [1]; {a: 1}", ""),
        ("path", "/x; 5", "[1]; {a: 1}"),
        ("raw", "x; [1]; {a: 1}", ""),
    ] {
        let option = format!("{{type: {wanted}}}");
        let split = |values: &'static str| values.split("; ").filter(|value| !value.is_empty());
        for value in split(fits) {
            assert_eq!(verdict(&option, value), "", "{wanted}: {value}");
        }
        for value in split(refused) {
            let why = verdict(&option, value);
            let unable = format!("and we were unable to convert to {wanted}: ");
            assert!(why.contains(&unable), "{wanted}: {value}: {why}");
        }
    }
    assert_eq!(verdict("{}", "[1]"), "", "text where nothing is said");
    assert_eq!(verdict("{type: int}", "~"), "", "nothing is given");
    assert_eq!(verdict("{type: int, required: true}", "~"), "missing required arguments: x");
    assert_eq!(verdict("{type: int, required: false}", "~"), "");
}

#[test]
fn choices_elements_and_options_within_are_checked() {
    let choices = "{type: list, choices: [a, 2]}";
    assert_eq!((verdict(choices, "[a, '2']"), verdict(choices, "[]")), (String::new(), String::new()));
    assert_eq!(verdict(choices, "[a, b]"), "value of x must be one or more of: a, 2. Got no match for: b");
    let elements = "{type: list, elements: int}";
    assert_eq!(verdict(elements, "[1, '2']"), "");
    assert_eq!(
        verdict(elements, "[1, y]"),
        "Elements value for option 'x' is of type str and we were unable to convert to int: \"'y'\" cannot be converted to an int"
    );
    let dict = "{type: dict, options: {port: {type: int, required: true}, name: {}}}";
    assert_eq!(verdict(dict, "{port: 1}"), "");
    assert_eq!(
        verdict(dict, "{port: p, more: 1}"),
        "argument 'port' is of type str found in 'x'. and we were unable to convert to int: \"'p'\" cannot be converted to an int\nx.more. Supported parameters include: name, port."
    );
    let list = "{type: list, elements: dict, options: {port: {type: int, required: true}}}";
    assert_eq!(verdict(list, "[{port: 1}, {port: 2}]"), "");
    assert_eq!(verdict(list, "[{port: 1}, {}]"), "missing required arguments: port found in x");
}

#[test]
fn arguments_are_those_of_the_variables_and_may_hang_on_a_command() {
    let text = "- hosts: all\n  tasks:\n    - {name: ask, command: a, register: r}\n    - {name: t, validate_argument_spec: {argument_spec: {x: {type: int}, y: {required: true}}}, vars: {y: '{{ r.stdout }}', x: '{{ omit }}'}}\n";
    let known = run(&mut cursor(text, json!({}), Mode::Apply), |action| {
        OpOutcomeSketch::Command(0, "out").fed(action)
    });
    assert_eq!(line(&known.reports[1]), "t: ok \"The arg spec validation passed\"");
    let open = run(&mut cursor(text, json!({}), Mode::Predict), |action| panic!("{action:?}"));
    assert_eq!(open.reports[1].status, Status::Possible, "{}", open.lines());
}
