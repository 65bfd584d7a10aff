//! Modules import each other one way: the rooms of the library, and within the engine every file. Structs of the engine
//! and of the interpreter stay small.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// What each room may import from. Every room may import from itself.
type Arrows = &'static [(&'static str, &'static [&'static str])];

/// The rooms of the library, each behind those that it may import from: so there is no circle of rooms. What the library
/// takes over from the language is no room of it.
const HOUSE: Arrows = &[
    ("index", &[]),
    ("event", &["index"]),
    ("rollout", &[]),
    ("interpreter", &["event", "index"]),
    ("journal", &["event", "index", "interpreter", "rollout"]),
    ("report", &["event", "index"]),
    ("display", &["event", "index", "report"]),
    ("transport", &[]),
    ("signature", &[]),
    ("hosts", &["interpreter", "transport"]),
    ("engine", &["event", "index", "interpreter", "journal", "report", "rollout"]),
    ("session", &["engine", "hosts", "interpreter", "transport"]),
    ("drain", &["engine", "hosts", "interpreter", "report", "transport"]),
    ("settings", &[]),
    ("reference", &["report", "settings"]),
];

/// The rooms of `engine/`.
const ROOMS: Arrows = &[
    ("ports", &[]),
    ("verdict", &[]),
    ("error", &[]),
    ("host", &["ports", "verdict"]),
    ("replay", &["host", "ports", "verdict"]),
    ("node", &["host", "ports", "verdict"]),
    ("fleet", &["node", "host", "ports", "verdict", "error"]),
    ("run", &["fleet", "node", "replay", "host", "ports", "verdict", "error"]),
];

/// The most named fields that a struct of the engine or the interpreter may have: more of them are several structs.
const MOST_FIELDS: usize = 12;

/// Structs that may have more, with the reason.
const LARGE_STRUCTS: [(&str, &str); 1] =
    [("HostHistory", "a tally of independent records of a journal, private to the file that reads them")];

/// A module of the engine, such as `node::custody::drain`; the engine itself is the empty text.
type Module = String;

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    files
}

fn module_of(file: &Path, engine: &Path) -> Module {
    let inside = file.strip_prefix(engine).unwrap().with_extension("");
    let names: Vec<&str> = inside.iter().map(|name| name.to_str().unwrap()).collect();
    names.join("::").trim_end_matches("mod").trim_end_matches("::").to_owned()
}

/// Returns the paths of a use tree: `a::{b, c::d}` gives `a::b` and `a::c::d`.
fn paths_of(tree: &str) -> Vec<String> {
    let (before, group) = match tree.split_once('{') {
        Some((before, rest)) => (before, rest.rsplit_once('}').unwrap().0),
        None => return vec![tree.split(" as ").next().unwrap().trim().to_owned()],
    };
    let (mut depth, mut start, mut paths) = (0, 0, Vec::new());
    for (at, letter) in group.char_indices().chain([(group.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = group[start..at].trim();
                if !part.is_empty() {
                    paths.extend(paths_of(part).into_iter().map(|path| format!("{}{path}", before.trim())));
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    paths
}

/// Everything that a module names by `crate::…` below `root`, or by `super::…`, in `use` items and elsewhere. Its inline
/// tests do not count.
fn named_in(text: &str, module: &str, root: &str) -> Vec<String> {
    let text = text.split("\n#[cfg(test)]\nmod tests").next().unwrap();
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = format!("\n{}", code.join("\n"));
    let mut paths = Vec::new();
    let mut rest = String::new();
    for (number, item) in code.split("\nuse ").enumerate() {
        let (tree, after) = if number == 0 { ("", item) } else { item.split_once(';').unwrap() };
        paths.extend(paths_of(tree));
        rest.push_str(after);
    }
    let is_part = |letter: char| !(letter.is_alphanumeric() || "_:".contains(letter));
    paths.extend(rest.split(is_part).filter(|word| word.contains("::")).map(str::to_owned));
    let within: Vec<&str> = module.split("::").filter(|name| !name.is_empty()).collect();
    let absolute = |path: String| {
        let mut above = within.clone();
        let mut path = path.as_str();
        if let Some(inside) = path.strip_prefix(root) {
            return Some(inside.to_owned());
        }
        path = path.strip_prefix("self::").unwrap_or(path);
        if !path.starts_with("super::") {
            return None;
        }
        while let Some(outer) = path.strip_prefix("super::") {
            above.pop()?;
            path = outer;
        }
        Some(above.into_iter().chain([path]).collect::<Vec<_>>().join("::"))
    };
    paths.into_iter().filter_map(absolute).collect()
}

/// Returns the module that a path leads into: the longest one that is its prefix.
fn target<'a>(path: &str, modules: &'a BTreeSet<Module>) -> Option<&'a Module> {
    let is_prefix = |module: &&Module| {
        path.strip_prefix(module.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    modules.iter().filter(|module| !module.is_empty()).filter(is_prefix).max_by_key(|module| module.len())
}

/// Which modules each module below a folder of the sources imports from.
///
/// `reexports` tells whether what a `mod.rs` names counts: in the engine it only hands names on.
fn imports(folder: &str, root: &str, reexports: bool) -> BTreeMap<Module, BTreeSet<Module>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder);
    let is_test = |file: &PathBuf| {
        let inside = file.strip_prefix(&folder).unwrap();
        inside.components().any(|part| part.as_os_str() == "tests") || inside.ends_with("tests.rs")
    };
    let files = rust_files(&folder).into_iter().filter(|file| !is_test(file));
    let texts: BTreeMap<Module, String> = files
        .map(|file| {
            let counts = reexports || file.file_name().is_some_and(|name| name != "mod.rs");
            let text = if counts { fs::read_to_string(&file).unwrap() } else { String::new() };
            (module_of(&file, &folder), text)
        })
        .collect();
    let modules: BTreeSet<Module> = texts.keys().cloned().collect();
    let imported = |module: &Module, text: &str| {
        let paths = named_in(text, module, root);
        let targets = paths.iter().filter_map(|path| target(path, &modules));
        targets.filter(|target| *target != module).cloned().collect()
    };
    texts.iter().map(|(module, text)| (module.clone(), imported(module, text))).collect()
}

/// The room that a module lies in.
fn room(module: &str) -> &str {
    module.split("::").next().unwrap_or_default()
}

/// What the modules of known rooms import against the arrows.
fn against(arrows: Arrows, imports: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = arrows.iter().copied().collect();
    let mut wrong = Vec::new();
    for (module, targets) in imports {
        let Some(allowed) = allowed.get(room(module)) else { continue };
        let is_wrong = |to: &&Module| room(to) != room(module) && !allowed.contains(&room(to));
        wrong.extend(targets.iter().filter(is_wrong).map(|to| format!("{module} imports {to}")));
    }
    wrong
}

/// Returns the modules that reach themselves, grouped by circle.
fn circles(imports: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Vec<Module>> {
    let reached = |from: &Module| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            next.extend(imports[module].iter().filter(|to| seen.insert((*to).clone())));
        }
        seen
    };
    let reach: BTreeMap<&Module, BTreeSet<Module>> =
        imports.keys().map(|from| (from, reached(from))).collect();
    let circle = |module: &Module| {
        let together = reach[module].iter().filter(|other| reach[other].contains(module));
        together.cloned().collect::<Vec<_>>()
    };
    imports.keys().map(circle).filter(|circle| !circle.is_empty()).collect()
}

/// The structs with named fields in a source, each with how many it has. Its inline tests do not count.
fn structs(text: &str) -> Vec<(String, usize)> {
    let text = text.split("\n#[cfg(test)]\nmod tests").next().unwrap();
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap()).collect();
    let code = code.join("\n");
    let is_word = |at: usize| !code[..at].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_');
    let starts = code.match_indices("struct ").filter(|(at, _)| is_word(*at));
    let items = starts.filter_map(|(at, keyword)| {
        let item = &code[at + keyword.len()..];
        let name: String =
            item.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
        let (head, body) = item.split_once('{')?;
        // Why: `struct Unit;` and `struct Pair(A, B);` have no named fields, and the brace is of something else.
        (!head.contains([';', '('])).then(|| (name, named_fields(body)))
    });
    items.collect()
}

/// How many fields stand before the brace that ends a struct: each has one `:` outside of brackets.
fn named_fields(body: &str) -> usize {
    let (mut depth, mut fields, mut before) = (0, 0, ' ');
    let mut letters = body.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '}' if depth == 0 => break,
            '{' | '(' | '[' | '<' => depth += 1,
            '>' if before == '-' => {}
            '}' | ')' | ']' | '>' => depth -= 1,
            ':' if depth == 0 && before != ':' && letters.peek() != Some(&':') => fields += 1,
            _ => {}
        }
        before = letter;
    }
    fields
}

#[test]
fn structs_stay_small() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut seen, mut large) = (0, Vec::new());
    for room in ["engine", "interpreter"].map(|room| sources.join(room)) {
        for file in rust_files(&room).into_iter().filter(|file| !file.starts_with(room.join("tests"))) {
            for (name, fields) in structs(&fs::read_to_string(&file).unwrap()) {
                seen += 1;
                if fields > MOST_FIELDS && !LARGE_STRUCTS.iter().any(|(known, _)| *known == name) {
                    large.push(format!("{name} has {fields} fields: {}", file.display()));
                }
            }
        }
    }
    assert!(seen > 80, "the structs were not found: {seen}");
    assert!(large.is_empty(), "over {MOST_FIELDS} fields are several structs:\n{}", large.join("\n"));
}

#[test]
fn named_fields_are_counted() {
    let text = "struct Unit;\nstruct Pair(A, B);\npub(crate) struct Two<'a> {\n    /// a: b\n    #[serde(default)]\n    pub x: \
                Map<A, fn(a: B) -> C>,\n    y: std::sync::Arc<str>, // z: 1\n}\nstruct Empty {}\n#[cfg(test)]\nmod tests {\nstruct \
                Other { a: A }\n}";
    let counted = structs(text);
    assert_eq!(counted, [("Two".to_owned(), 2), ("Empty".to_owned(), 0)]);
}

#[test]
fn no_circle_of_files() {
    let imports = imports("engine", "crate::engine::", false);
    assert!(
        imports.values().map(BTreeSet::len).sum::<usize>() > 100,
        "the imports were not found: {imports:?}"
    );
    let circles = circles(&imports);
    let shown: Vec<String> = circles.iter().map(|circle| circle.join(" <-> ")).collect();
    assert!(
        circles.is_empty(),
        "these modules of engine/ import each other in a circle:\n{}",
        shown.join("\n")
    );
}

#[test]
fn each_room_of_the_engine_imports_what_lies_below_it() {
    let imports = imports("engine", "crate::engine::", false);
    let known: BTreeSet<&str> = ROOMS.iter().map(|(room, _)| *room).collect();
    let unknown = imports.keys().find(|module| !module.is_empty() && !known.contains(room(module)));
    assert_eq!(unknown, None, "a module in no known room: name it in ROOMS");
    let mut wrong = against(ROOMS, &imports);
    for (module, targets) in &imports {
        let below = |to: &&Module| {
            room(module) == "node" && module.contains("::conversation::") && to.contains("::custody::")
        };
        wrong.extend(targets.iter().filter(below).map(|to| format!("{module} imports {to}")));
    }
    assert!(wrong.is_empty(), "against the arrows of docs/architecture.md:\n{}", wrong.join("\n"));
}

/// What the engine reaches through its ports alone.
const BEHIND_PORTS: [&str; 5] = ["cli", "display", "drain", "session", "transport"];

/// Modules of the crate that a file names, its inline tests left out.
fn crate_modules(text: &str) -> BTreeSet<String> {
    let text = text.split("\n#[cfg(test)]\nmod tests").next().unwrap();
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = format!("\n{}", code.join("\n"));
    let uses = code.split("\nuse ").skip(1).flat_map(|item| paths_of(item.split_once(';').unwrap().0));
    let is_part = |letter: char| !(letter.is_alphanumeric() || "_:".contains(letter));
    let elsewhere = code.split(is_part).map(str::to_owned);
    let paths = uses.chain(elsewhere).filter_map(|path| Some(path.strip_prefix("crate::")?.to_owned()));
    let first = paths.map(|path| path.split("::").next().unwrap_or_default().to_owned());
    first.filter(|module| !module.is_empty()).collect()
}

#[test]
fn the_engine_meets_the_world_through_its_ports() {
    let engine = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine");
    let mut wrong = Vec::new();
    for file in rust_files(&engine).iter().filter(|file| !file.starts_with(engine.join("tests"))) {
        let named = crate_modules(&fs::read_to_string(file).unwrap());
        let behind = BEHIND_PORTS.iter().filter(|module| named.contains(**module));
        wrong.extend(behind.map(|module| format!("{} imports {module}", file.display())));
    }
    assert!(wrong.is_empty(), "go through engine/ports:\n{}", wrong.join("\n"));
}

#[test]
fn nothing_but_the_binary_imports_cli() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let own = |file: &&PathBuf| file.starts_with(source.join("cli")) || **file == source.join("main.rs");
    for file in rust_files(&source).iter().filter(|file| !own(file)) {
        let text = fs::read_to_string(file).unwrap();
        assert!(!crate_modules(&text).contains("cli"), "{} imports cli", file.display());
        assert!(!text.contains("mod cli;"), "{} has cli as its module", file.display());
    }
}

#[test]
fn each_room_of_the_library_imports_what_lies_below_it() {
    for (place, (room, below)) in HOUSE.iter().enumerate() {
        let earlier = |other: &&str| HOUSE.iter().take(place).any(|(room, _)| room == other);
        assert!(below.iter().all(earlier), "{room} stands before what it imports");
    }
    // Why not these: the binary may import anything, and the fuzzed entries are of every room.
    const NONE: [&str; 4] = ["cli", "fuzzing", "lib", "main"];
    let imports = imports("", "crate::", true);
    let known: BTreeSet<&str> = HOUSE.iter().map(|(room, _)| *room).chain(NONE).collect();
    assert_eq!(imports.keys().find(|module| !known.contains(room(module))), None, "name its room in HOUSE");
    let wrong = against(HOUSE, &imports);
    assert!(wrong.is_empty(), "against the arrows of HOUSE:\n{}", wrong.join("\n"));
    let found = |from: &str, to: &str| imports[from].iter().any(|target| room(target) == to);
    assert!(found("journal::record", "event") && found("interpreter::action", "event"), "{imports:?}");
}

#[test]
fn a_use_tree_names_its_paths() {
    let modules = crate_modules("use crate::{a::b, c::{d, e}};\nfn f() { crate::g::h(); }\n");
    assert_eq!(modules, ["a", "c", "g"].map(str::to_owned).into());

    let paths = paths_of("crate::engine::{host::{self, HostState}, node::early_end::EarlyEnd as Why}");
    assert_eq!(
        paths,
        [
            "crate::engine::host::self",
            "crate::engine::host::HostState",
            "crate::engine::node::early_end::EarlyEnd"
        ]
    );
    let text = "use crate::{drain::Marker, engine::ports::link::Link};\nuse super::boot;\nfn f() { super::super::x::y(); }\n";
    let named = named_in(text, "node::custody::drain", "crate::engine::");
    assert_eq!(named, ["ports::link::Link", "node::custody::boot", "node::x::y"]);
    let a = |module: &str| module.to_owned();
    let imports = [(a("a"), [a("b")].into()), (a("b"), [a("a")].into()), (a("c"), [a("a")].into())].into();
    assert_eq!(circles(&imports), [vec![a("a"), a("b")]].into());
}
