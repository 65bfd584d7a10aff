//! The engine's modules import each other one way: no circle of files, and every room only what lies below it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The rooms of `engine/`, and what each may import from. Every room may import from itself.
const ROOMS: [(&str, &[&str]); 9] = [
    ("ports", &[]),
    ("verdict", &[]),
    ("task_report", &[]),
    ("error", &[]),
    ("host", &["ports", "verdict"]),
    ("replay", &["host", "ports", "verdict", "task_report"]),
    ("node", &["host", "ports", "verdict", "task_report"]),
    ("fleet", &["node", "host", "ports", "verdict", "error"]),
    ("run", &["fleet", "node", "replay", "host", "ports", "verdict", "error"]),
];

/// A module of the engine, such as `node::custody::drain`; the engine itself is empty.
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

/// The paths that a use tree names: `a::{b, c::d}` gives `a::b` and `a::c::d`.
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

/// Everything that a module names by `crate::engine::…` or `super::…`, in `use` items and elsewhere. Its inline tests and
/// what is only re-exported do not count.
fn named_in(text: &str, module: &str, is_room: bool) -> Vec<String> {
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
        if let Some(inside) = path.strip_prefix("crate::engine::") {
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
    if is_room { Vec::new() } else { paths.into_iter().filter_map(absolute).collect() }
}

/// Which module a path leads into: the longest one that it begins with.
fn target<'a>(path: &str, modules: &'a BTreeSet<Module>) -> Option<&'a Module> {
    let is_prefix = |module: &&Module| {
        path.strip_prefix(module.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    modules.iter().filter(|module| !module.is_empty()).filter(is_prefix).max_by_key(|module| module.len())
}

/// Which modules each module of the engine imports from.
fn imports() -> BTreeMap<Module, BTreeSet<Module>> {
    let engine = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine");
    let files = rust_files(&engine).into_iter().filter(|file| !file.starts_with(engine.join("tests")));
    let texts: BTreeMap<Module, (bool, String)> = files
        .map(|file| {
            let is_room = file.file_name().is_some_and(|name| name == "mod.rs");
            (module_of(&file, &engine), (is_room, fs::read_to_string(&file).unwrap()))
        })
        .collect();
    let modules: BTreeSet<Module> = texts.keys().cloned().collect();
    let imported = |module: &Module, is_room, text: &str| {
        let paths = named_in(text, module, is_room);
        let targets = paths.iter().filter_map(|path| target(path, &modules));
        targets.filter(|target| *target != module).cloned().collect()
    };
    texts.iter().map(|(module, (is_room, text))| (module.clone(), imported(module, *is_room, text))).collect()
}

/// Modules that lead back to themselves, in groups that reach each other.
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

#[test]
fn no_circle_of_files() {
    let imports = imports();
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
fn each_room_imports_what_lies_below_it() {
    let room = |module: &str| module.split("::").next().unwrap_or_default().to_owned();
    let allowed: BTreeMap<&str, &[&str]> = ROOMS.into_iter().collect();
    let mut wrong = Vec::new();
    for (module, targets) in imports().iter().filter(|(module, _)| !module.is_empty()) {
        let (from, is_known) = (room(module), allowed.contains_key(room(module).as_str()));
        assert!(is_known, "{module} is in no known room: name it in ROOMS");
        for to in
            targets.iter().filter(|to| room(to) != from && !allowed[from.as_str()].contains(&&*room(to)))
        {
            wrong.push(format!("{module} imports {to}"));
        }
        let below = |to: &&Module| {
            from == "node" && module.contains("::conversation::") && to.contains("::custody::")
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
fn a_use_tree_names_its_paths() {
    let modules = crate_modules("use crate::{a::b, c::{d, e}};\nfn f() { crate::g::h(); }\n");
    assert_eq!(modules, ["a", "c", "g"].map(str::to_owned).into());

    let paths = paths_of("crate::engine::{host::{self, Slot}, node::cut::Cut as Why}");
    assert_eq!(
        paths,
        ["crate::engine::host::self", "crate::engine::host::Slot", "crate::engine::node::cut::Cut"]
    );
    let text = "use crate::{drain::Marker, engine::ports::link::Link};\nuse super::boot;\nfn f() { super::super::x::y(); }\n";
    let named = named_in(text, "node::custody::drain", false);
    assert_eq!(named, ["ports::link::Link", "node::custody::boot", "node::x::y"]);
    let a = |module: &str| module.to_owned();
    let imports = [(a("a"), [a("b")].into()), (a("b"), [a("a")].into()), (a("c"), [a("a")].into())].into();
    assert_eq!(circles(&imports), [vec![a("a"), a("b")]].into());
}
