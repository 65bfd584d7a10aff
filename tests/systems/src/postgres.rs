//! A real PostgreSQL in a folder of its own, which listens on a socket there and nowhere else.

use std::{
    fs,
    os::unix::{fs::chown, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// The user that it runs as, which it refuses root to be: `nobody`.
const USER: u32 = 65_534;
/// Of the user `fleet`, in its database `fleet`.
pub const PASSWORD: &str = "s3cret-of-the-store";
/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server, which ends when it is dropped.
#[derive(Debug)]
pub struct Postgres {
    server: Child,
    folder: TempDir,
}

impl Postgres {
    /// Makes a database and starts its server.
    ///
    /// # Panics
    /// PostgreSQL is not installed, or does not start.
    pub fn start() -> Self {
        // Why not in the usual place: a socket's path has at most 107 bytes.
        let folder = tempfile::Builder::new().prefix("pg").tempdir_in("/tmp").expect("a folder");
        let path = folder.path();
        chown(path, Some(USER), Some(USER)).expect("the folder is the server's");
        let password = path.join("password");
        fs::write(&password, PASSWORD).expect("the password");
        chown(&password, Some(USER), Some(USER)).expect("the password is the server's");
        let data = path.join("data");
        let made = program("initdb", path)
            .args(["--username=fleet", "--auth=scram-sha-256", "--encoding=UTF8", "--no-sync", "--pwfile"])
            .args([&password, Path::new("-D"), &data])
            .output()
            .expect("initdb runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let server = program("postgres", path)
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(path)
            .args(["-c", "listen_addresses=", "-c", "fsync=off"])
            .stdout(Stdio::null())
            .stderr(fs::File::create(path.join("log")).expect("a log"))
            .spawn()
            .expect("postgres starts");
        let mut started = Self { server, folder };
        let begin = Instant::now();
        while !started.make_database() {
            let gone = started.server.try_wait().expect("the server").is_some();
            assert!(!gone && begin.elapsed() < PATIENCE, "{}", started.log());
            thread::sleep(Duration::from_millis(100));
        }
        started
    }

    /// Makes the database `fleet` anew; false where the server does not answer.
    pub fn make_database(&self) -> bool {
        let statement = |statement: &str| {
            let mut psql = program("psql", self.folder.path());
            psql.env("PGPASSWORD", PASSWORD).args(["-U", "fleet", "-d", "postgres", "-h"]);
            let done =
                psql.arg(self.folder.path()).args(["-q", "-c", statement]).output().expect("psql runs");
            done.status.success()
        };
        statement("DROP DATABASE IF EXISTS fleet WITH (FORCE)") && statement("CREATE DATABASE fleet")
    }

    /// The URL of the store, with this password.
    pub fn url(&self, password: &str) -> String {
        format!("postgres://fleet:{password}@localhost/fleet?host={}", self.folder.path().display())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // A fast end, as its manual calls it: clients are cut off.
        if let Some(pid) = rustix::process::Pid::from_raw(self.server.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        }
        let _ = self.server.wait();
    }
}

/// A program of PostgreSQL, as its user. Debian has most of them outside of the path.
fn program(name: &str, folder: &Path) -> Command {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions.map(|version| version.path().join("bin").join(name)).collect();
    found.retain(|path| path.exists());
    found.sort();
    let mut command = Command::new(found.pop().unwrap_or_else(|| PathBuf::from(name)));
    command
        .current_dir(folder)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("LC_ALL", "C.UTF-8")
        .uid(USER)
        .gid(USER);
    command
}
