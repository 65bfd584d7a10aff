//! docs/schema has the schemas of this crate; `UPDATE=1` writes them.

use std::{fs, path::Path};

#[test]
fn schema_files_are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema");
    let all = [
        ("watch", gpufleet_watch::config::schema()),
        ("notification", gpufleet_watch::notification::schema()),
    ];
    for (name, schema) in all {
        let path = folder.join(format!("{name}.schema.json"));
        let wanted = format!("{}\n", serde_json::to_string_pretty(&schema).unwrap());
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, &wanted).unwrap();
        }
        let there = fs::read_to_string(&path).unwrap_or_default();
        assert!(there == wanted, "{} is out of date: UPDATE=1 cargo test -p gpufleet-watch", path.display());
    }
}
