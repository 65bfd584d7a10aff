//! System users for tests of passwords and sudo, with random name and password, deleted at the end.

use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
    sync::Mutex,
};

use crate::node::{run, uid};

static PASSWD: Mutex<()> = Mutex::new(());

pub struct User {
    pub name: String,
    pub password: String,
    sudoers: Option<String>,
}

impl User {
    /// # Panics
    /// If not run by root.
    pub fn create(shell: &str, sudoers: Option<&str>) -> Self {
        assert_eq!(uid(), 0, "this test needs root, to create a user with a password");
        let random = uuid::Uuid::new_v4().simple().to_string();
        let user = Self {
            name: format!("gf{}", &random[..10]),
            password: random[10..].to_owned(),
            sudoers: sudoers.map(|_| format!("/etc/sudoers.d/gpufleet-test-{}", &random[..10])),
        };
        {
            let _turn = PASSWD.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            run(Command::new("useradd").args(["-m", "-s", shell, &user.name]));
            let mut child = Command::new("chpasswd").stdin(Stdio::piped()).spawn().unwrap();
            let line = format!("{}:{}\n", user.name, user.password);
            child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
            assert!(child.wait().unwrap().success());
        }
        if let (Some(path), Some(rule)) = (&user.sudoers, sudoers) {
            fs::write(path, format!("{}\n", rule.replace("USER", &user.name))).unwrap();
        }
        user
    }

    pub fn home(&self) -> String {
        format!("/home/{}", self.name)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _turn = PASSWD.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(path) = &self.sudoers {
            let _ = fs::remove_file(path);
        }
        let _ = Command::new("userdel").args(["-f", "-r", &self.name]).stderr(Stdio::null()).status();
    }
}
