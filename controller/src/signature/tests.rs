//! Signatures against the real `ssh-keygen`, both ways, and the file of allowed signers.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use jiff::{Timestamp, tz::TimeZone};
use ssh_key::PublicKey;

use super::*;
use crate::transport::{Environment, NoPrompt, SigningKey};

const WHAT: &[u8] = b"{\"run_id\": \"01JD8Q4T9X\"}\n";

fn keygen(arguments: &[&str], stdin: &[u8]) -> (bool, String) {
    let mut child = Command::new("ssh-keygen")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may end before it has read all.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let done = child.wait_with_output().unwrap();
    let text = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn environment() -> Environment {
    Environment {
        home: None,
        user: "ops".to_owned(),
        uid: rustix::process::getuid().as_raw(),
        hostname: "controller".to_owned(),
        ssh_auth_sock: None,
        ssh_config: None,
        ssh_program: "ssh".into(),
        prompt: Arc::new(NoPrompt),
    }
}

/// Makes a key and returns its public half.
fn key(path: &Path, kind: &[&str]) -> PublicKey {
    let path_text = path.to_str().unwrap();
    let (made, said) = keygen(&[&["-q", "-N", "", "-C", "ops", "-f", path_text], kind].concat(), b"");
    assert!(made, "{said}");
    PublicKey::from_openssh(&fs::read_to_string(path.with_extension("pub")).unwrap()).unwrap()
}

async fn sign(path: &Path, bytes: &[u8]) -> Result<String, String> {
    let environment = environment();
    let (public, signature) = SigningKey::new(path, &environment).sign(to_be_signed(bytes).unwrap()).await?;
    Ok(armored(&public, signature).unwrap())
}

#[tokio::test]
async fn signatures_of_gpufleet_and_of_ssh_keygen_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for kind in [&["-t", "ed25519"][..], &["-t", "ecdsa"], &["-t", "rsa", "-b", "2048"]] {
        let path = folder.path().join(kind[1]);
        let public = key(&path, kind);
        let allowed = folder.path().join("allowed");
        let line = format!("ops@example.com,night@example.com {}\n", public.to_openssh().unwrap());
        fs::write(&allowed, &line).unwrap();
        // Ours, for ssh-keygen.
        let ours = folder.path().join("ours.sig");
        fs::write(&ours, sign(&path, WHAT).await.unwrap()).unwrap();
        let verify = |bytes: &[u8]| {
            let (allowed, ours) = (allowed.to_str().unwrap(), ours.to_str().unwrap());
            keygen(
                &["-Y", "verify", "-f", allowed, "-I", "ops@example.com", "-n", NAMESPACE, "-s", ours],
                bytes,
            )
        };
        assert!(verify(WHAT).0, "{kind:?}: {}", verify(WHAT).1);
        assert!(!verify(b"other").0, "{kind:?}");
        // Its, for us.
        let file = folder.path().join("file");
        fs::write(&file, WHAT).unwrap();
        let (file, secret) = (file.to_str().unwrap(), path.to_str().unwrap());
        let (signed, said) = keygen(&["-Y", "sign", "-q", "-f", secret, "-n", NAMESPACE, file], b"");
        assert!(signed, "{said}");
        let theirs = fs::read_to_string(format!("{file}.sig")).unwrap();
        fs::remove_file(format!("{file}.sig")).unwrap();
        let found = check(WHAT, &theirs).unwrap();
        assert!(found.is_by(&public), "{kind:?}");
        let signers = AllowedSigners::read(&line, &TimeZone::UTC).unwrap();
        assert_eq!(signers.signer(&found, Timestamp::now()), Ok("ops@example.com,night@example.com"));
        assert_eq!(check(b"other", &theirs).unwrap_err(), SignatureError::Wrong, "{kind:?}");
        // For something else.
        let (signed, said) = keygen(&["-Y", "sign", "-q", "-f", secret, "-n", "git", file], b"");
        assert!(signed, "{said}");
        let other = fs::read_to_string(format!("{file}.sig")).unwrap();
        fs::remove_file(format!("{file}.sig")).unwrap();
        assert_eq!(check(WHAT, &other).unwrap_err(), SignatureError::Namespace("git".to_owned()));
    }
    assert!(matches!(check(WHAT, "no signature"), Err(SignatureError::Unreadable(_))));
}

#[tokio::test]
async fn a_key_that_cannot_sign_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locked");
    let (made, said) =
        keygen(&["-q", "-N", "secret-words", "-t", "ed25519", "-f", path.to_str().unwrap()], b"");
    assert!(made, "{said}");
    let error = sign(&path, WHAT).await.unwrap_err();
    assert!(error.contains("encrypted") && error.contains("ssh-add"), "{error}");
    assert!(sign(&folder.path().join("none"), WHAT).await.unwrap_err().contains("no such file"));
    let error = sign(&path.with_extension("pub"), WHAT).await.unwrap_err();
    assert!(error.contains("public half"), "{error}");
}

#[tokio::test]
async fn the_agent_signs_with_a_key_whose_private_half_is_not_here() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    let public = key(&path, &["-t", "ed25519"]);
    let socket = folder.path().join("agent");
    let mut agent = Command::new("ssh-agent")
        .args(["-D", "-a", socket.to_str().unwrap()])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    for _ in 0..1500 {
        // Not its file, which exists a moment before the agent listens.
        if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let added = Command::new("ssh-add").arg("-q").arg(&path).env("SSH_AUTH_SOCK", &socket).status().unwrap();
    assert!(added.success());
    fs::remove_file(&path).unwrap();
    let environment = Environment { ssh_auth_sock: Some(socket), ..environment() };
    let half = path.with_extension("pub");
    let signing = SigningKey::new(&half, &environment);
    let signed = signing.sign(to_be_signed(WHAT).unwrap()).await;
    agent.kill().unwrap();
    agent.wait().unwrap();
    let (_, signature) = signed.unwrap();
    assert!(check(WHAT, &armored(&public, signature).unwrap()).unwrap().is_by(&public));
}

#[tokio::test]
async fn allowed_signers_are_allowed_for_reports_and_in_time_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    let public = key(&path, &["-t", "ed25519"]).to_openssh().unwrap();
    let signed = check(WHAT, &sign(&path, WHAT).await.unwrap()).unwrap();
    let now: Timestamp = "2026-11-21T09:00:00Z".parse().unwrap();
    let ask = |line: &str| {
        let text = format!("# signers\n\n{line}\n");
        AllowedSigners::read(&text, &TimeZone::UTC).map(|all| all.signer(&signed, now).map(str::to_owned))
    };
    let yes = |name: &str| Ok(Ok(name.to_owned()));
    assert_eq!(ask(&format!("ops {public}")), yes("ops"));
    assert_eq!(ask(&format!("\"ops team\" namespaces=\"git,gpufleet-*\" {public}")), yes("ops team"));
    assert_eq!(
        ask(&format!("ops valid-after=\"20261121\",valid-before=\"202611210901Z\" {public}")),
        yes("ops")
    );
    for (options, refusal) in [
        ("namespaces=\"git\"", allowed::Refusal::Namespace),
        ("namespaces=\"*,!gpufleet-report\"", allowed::Refusal::Namespace),
        ("valid-after=20261122", allowed::Refusal::Time),
        ("valid-before=\"20261121085959Z\"", allowed::Refusal::Time),
        ("cert-authority", allowed::Refusal::Authority),
    ] {
        assert_eq!(ask(&format!("ops {options} {public}")), Ok(Err(refusal)), "{options}");
    }
    let other = key(&folder.path().join("other"), &["-t", "ed25519"]).to_openssh().unwrap();
    assert_eq!(ask(&format!("ops {other}")), Ok(Err(allowed::Refusal::Unknown)));
    for wrong in ["ops", "ops ssh-ed25519 AAAA", "ops valid-after=soon KEY", "ops no-touch KEY"] {
        let wrong = wrong.replace("KEY", &public);
        assert_eq!(ask(&wrong).unwrap_err().line, 3, "{wrong}");
    }
}
