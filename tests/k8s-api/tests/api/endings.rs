//! A server ends when it is dropped, whatever it is busy with.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gpufleet_k8s_api::server::Server;
use gpufleet_k8s_api::settings::Settings;

/// Each end meets the server in another instant of waking up, which it does after every look from outside.
#[test]
fn a_server_that_wakes_up_as_it_is_dropped_ends() {
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        for _ in 0..2000 {
            let server = Server::standing(Settings::default()).expect("it starts");
            server.with(|_| ());
            drop(server);
        }
        // Why ignored: who waits for it may have given up.
        let _ = done.send(());
    });
    ended.recv_timeout(Duration::from_secs(50)).expect("every server ended");
}
