//! A server ends when it is dropped, whatever it is doing.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use gpufleet_k8s_api::server::Server;
use gpufleet_k8s_api::settings::Settings;

/// Each drop happens at another moment of the server's wake-up; it once missed its end at one of them.
#[test]
fn a_server_that_wakes_up_as_it_is_dropped_ends() {
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        for turn in 0..5_000_u64 {
            let server = Server::standing(Settings::default()).expect("it starts");
            server.with(|_| ());
            let wakes = Instant::now();
            while wakes.elapsed() < Duration::from_nanos(turn * 37 % 100_000) {
                std::hint::spin_loop();
            }
            drop(server);
        }
        // The receiver may have given up.
        let _ = done.send(());
    });
    ended.recv_timeout(Duration::from_secs(100)).expect("every server ended");
}
