//! A helper made of a shell script: it sends hello, and answers each request with `done`.
//!
//! For tests of how a helper is sent to a node and started; its operations are tested elsewhere.

use std::{fs, path::PathBuf, sync::Arc};

use gpufleet::session::{NodeFile, NodeFiles, NodeSession, SessionOptions};

const SCRIPT: &str = r#"#!/bin/sh
# VARIANT
[ "$1" = serve ] || exit 0
# Tests put programs of their own before these.
PATH=/usr/bin:/bin
set -f
frame() {
  n=$((${#1} + 1))
  printf "$(printf '\\%03o\\%03o\\%03o\\%03o' $((n / 16777216 % 256)) $((n / 65536 % 256)) $((n / 256 % 256)) $((n % 256)))J%s" "$1"
}
d=$(sha256sum "$0" | cut -d ' ' -f 1)
DIGEST
printf '\000\001gpufleet-node\002\n'
frame "{\"id\":0,\"body\":{\"reply\":\"hello\",\"with\":{\"protocol\":1,\"digest\":\"$d\",\"uid\":$(id -u),\"arch\":\"$(uname -m)\",\"pid\":$$,\"boot_id\":\"$0\"}}}"
while :; do
  h=$(dd bs=1 count=5 2>/dev/null | od -An -tu1)
  [ -n "$h" ] || exit 0
  set -- $h
  m=$(dd bs=1 count=$(($1 * 16777216 + $2 * 65536 + $3 * 256 + $4 - 1)) 2>/dev/null)
  i=${m#*\"id\":}
  i=${i%%,*}
  [ "$i" = 0 ] || frame "{\"id\":$i,\"body\":{\"reply\":\"done\"}}"
  case $m in *'"close"'*) exit 0;; esac
done
"#;

fn options(script: String) -> SessionOptions {
    let file = NodeFile::new(std::env::consts::ARCH, script.as_bytes());
    let mut options = SessionOptions::new(Arc::new(NodeFiles::new(vec![file])));
    options.deadlines.start = std::time::Duration::from_secs(20);
    options
}

/// Returns a helper whose content differs by `variant`.
pub fn fake(variant: &str) -> SessionOptions {
    options(SCRIPT.replace("VARIANT", variant).replace("DIGEST", ""))
}

/// Returns a helper of several megabytes, so that sending takes several windows.
pub fn big() -> SessionOptions {
    // Random letters, because gzip would compress words.
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-";
    let mut state = 1_u64;
    let mut letter = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(LETTERS[(state >> 58) as usize])
    };
    let line = |_| format!("# {}\n", (0..64).map(|_| letter()).collect::<String>());
    let padding: String = (0..70_000).map(line).collect();
    options(SCRIPT.replace("VARIANT", "big").replace("DIGEST", "") + "exit 0\n" + &padding)
}

/// Returns a helper that exits before its hello.
pub fn dying() -> SessionOptions {
    options("#!/bin/sh\n[ \"$1\" = serve ] || exit 0\necho libc is broken >&2\nexit 7\n".to_owned())
}

/// Returns a helper that claims another digest.
pub fn lying() -> SessionOptions {
    options(SCRIPT.replace("DIGEST", "d=0000"))
}

/// Returns a helper that never answers.
pub fn silent() -> SessionOptions {
    let mut options = options("#!/bin/sh\n[ \"$1\" = serve ] || exit 0\nexec cat >/dev/null\n".to_owned());
    options.deadlines.start = std::time::Duration::from_secs(2);
    options
}

/// Removes a helper from a folder of this machine that outlives the test.
pub async fn forget(session: NodeSession) {
    let path = PathBuf::from(session.hello().boot_id.clone().unwrap());
    session.close().await;
    // Errors are ignored: a helper that ran as a user of the test was removed with that user.
    for path in [path.with_extension("seen"), path] {
        let _ = fs::remove_file(path);
    }
}

pub fn digest(options: &SessionOptions) -> String {
    let text = format!("{:?}", options.node_files);
    text.split("sha256: \"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}
