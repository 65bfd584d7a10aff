//! A server ends when it is dropped, whatever it is doing.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use gpufleet_k8s_api::server::Server;
use gpufleet_k8s_api::settings::Settings;

const TURNS: u64 = 5_000;

/// Each drop happens at another moment of the server's wake-up; it once missed its end at one of them.
#[test]
fn a_server_that_wakes_up_as_it_is_dropped_ends() {
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        for turn in 0..TURNS {
            let server = Server::standing(Settings::default()).expect("it starts");
            server.with(|_| ());
            let wakes = Instant::now();
            while wakes.elapsed() < Duration::from_nanos(turn * 37 % 100_000) {
                std::hint::spin_loop();
            }
            drop(server);
            // The receiver may have given up.
            let _ = done.send(turn);
        }
    });
    // A limit for each of them: how long all take is up to the machine.
    for turn in 0..TURNS {
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(turn), "the server ended");
    }
}
