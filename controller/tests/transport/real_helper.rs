//! The helper embedded in this build, on a real node.

use std::{collections::HashMap, fs, sync::Arc};

use gpufleet::session::{LockOutcome, NoBlobs, NodeFile, NodeFiles, NodeSession, SessionOptions};
use gpufleet_protocol::{
    NodeOp, OpRequest, OpStatus, RunEpoch,
    message::{Mode, Open},
    op::{Blob, Exec, Program, PutFile},
};
use tokio_util::bytes::Bytes;

use crate::node::Node;

fn operation(op: NodeOp, id: &str) -> OpRequest {
    OpRequest {
        op,
        mode: Mode::Apply,
        permit: None,
        run_as: None,
        timeout_s: 30,
        op_id: id.to_owned(),
        secret: false,
        environment: Vec::new(),
    }
}

#[tokio::test]
async fn commands_run_and_content_arrives() {
    let files = NodeFiles::embedded();
    assert!(gpufleet_payload::NODE.size > 0, "this build embeds no helper; unset GPUFLEET_NODE_BIN");
    let node = Node::start();
    let options = SessionOptions::new(Arc::new(files));
    let connector = node.connector();
    for pushed in [true, false] {
        let session = NodeSession::open(&connector, &node.target(), &options).await.unwrap();
        assert_eq!(session.was_pushed(), pushed);
        let open = Open {
            holder: RunEpoch { run: "transport-test".to_owned(), epoch: 1 },
            who: "test".to_owned(),
            writes: true,
            guest: false,
            commands: false,
            own_commands: false,
            login_uid: Some(session.login_uid()),
        };
        let LockOutcome::Opened(_) = session.open_lock(open).await.unwrap() else { panic!("locked") };

        let line = "echo from the node; sleep 0.2".to_owned();
        let run = Program::Shell { line, executable: "/bin/sh".to_owned() };
        let exec = operation(NodeOp::Exec(Exec { run, ..Exec::default() }), "exec");
        let calls = (0..5).map(|_| session.call(exec.clone(), &NoBlobs, |_| {}));
        for outcome in futures::future::join_all(calls).await {
            let outcome = outcome.unwrap();
            assert_eq!(
                outcome.data.get("stdout").and_then(|text| text.as_str()),
                Some("from the node"),
                "{outcome:?}"
            );
        }

        let content = Bytes::from((0..3_000_000u32).map(|n| (n % 253) as u8).collect::<Vec<_>>());
        let sha256 = NodeFile::new("", &content).sha256;
        let dest = node.path(if pushed { "one" } else { "two" });
        let put = PutFile {
            dest: dest.display().to_string(),
            name: "content".to_owned(),
            blob: Some(Blob { sha256: sha256.clone(), size: content.len() as u64 }),
            remote_src: None,
            preview: None,
            owner: None,
            group: None,
            mode: None,
            backup: false,
            force: true,
            validate: None,
            secret: false,
            follow: false,
            checksum: None,
            directory_mode: None,
            source: None,
            tells_diff: false,
        };
        let blobs: HashMap<String, Bytes> = [(sha256, content.clone())].into();
        let outcome = session.call(operation(NodeOp::PutFile(put), "put"), &blobs, |_| {}).await.unwrap();
        assert!(!matches!(outcome.status, OpStatus::Failed { .. }), "{outcome:?}");
        assert!(fs::read(&dest).unwrap() == content);
        session.close().await;
    }
}
