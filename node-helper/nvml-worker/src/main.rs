//! The process that loads libnvidia-ml.so.1 on a node.
//!
//! Reads requests ([`gpufleet_protocol::nvml`]) from stdin and answers on stdout until stdin ends. It is dynamically
//! linked with glibc, because a static program cannot load NVML. It is a process of its own, because an NVML call can
//! hang for ever. `nvmlInit` opens every `/dev/nvidiaN`: while this process lives, it is a client of all GPUs.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod health;
mod nvml;
mod setting;
mod snapshot;

use std::{
    io::{Read, Write},
    sync::mpsc,
};

use gpufleet_protocol::{
    frame::{Decoder, Frame},
    nvml::{Answer, Answered, Ask, Asked},
};

use nvml::{Nvml, OpenError};

/// Returns the driver version in a version of NVML, which begins with that of CUDA: `13.580.159.04`.
fn driver_of(nvml: String) -> String {
    match nvml.split_once('.') {
        Some((_, driver)) if driver.contains('.') => driver.to_owned(),
        _ => nvml,
    }
}

fn main() {
    nvml::forbid_dumps();
    let Ok(mut out) = nvml::own_stdout() else { nvml::leave(3) };
    let (sender, requests) = mpsc::channel();
    // A thread, which ends the process if its parent dies while a call hangs.
    std::thread::spawn(move || {
        forward_requests(sender);
        // Two seconds for the main thread to close NVML and end the process, unless a call hangs.
        std::thread::sleep(std::time::Duration::from_secs(2));
        nvml::leave(5);
    });
    let mut worker = Worker::default();
    for Asked { id, request } in requests {
        let answer = worker.answer(&request);
        let Ok(bytes) = Frame::message(&Answered { id, answer }).and_then(|frame| frame.encode()) else {
            break;
        };
        if out.write_all(&bytes).and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    worker.close();
    nvml::leave(0);
}

/// Passes on requests until stdin ends, which also ends the main thread's loop.
fn forward_requests(sender: mpsc::Sender<Asked>) {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0u8; 64 * 1024];
    let mut stdin = std::io::stdin().lock();
    loop {
        match stdin.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => decoder.feed(buffer.get(..count).unwrap_or_default()),
        }
        loop {
            match decoder
                .next_frame()
                .map(|frame| frame.and_then(|frame| frame.decode::<Asked>().ok().flatten()))
            {
                Ok(Some(asked)) => {
                    if sender.send(asked).is_err() {
                        return;
                    }
                }
                Ok(None) => break,
                Err(_) => nvml::leave(4),
            }
        }
    }
}

#[derive(Default)]
struct Worker {
    nvml: Option<Nvml>,
}

impl Worker {
    fn answer(&mut self, request: &Ask) -> Answer {
        let nvml = match request {
            Ask::Hello => return Answer::Hello { pid: std::process::id() },
            _ => match self.open() {
                Ok(nvml) => nvml,
                Err(answer) => return answer,
            },
        };
        match request {
            Ask::Hello => Answer::Hello { pid: std::process::id() },
            Ask::Snapshot => Answer::Snapshot(Box::new(snapshot::read(nvml))),
            Ask::Health { deep } => Answer::Health(Box::new(health::read(nvml, *deep))),
            Ask::Devices => match snapshot::devices(nvml) {
                Ok(devices) => Answer::Devices(devices),
                Err(code) => Answer::Failed { call: "nvmlDeviceGetCount_v2".to_owned(), code },
            },
            Ask::Lately => Answer::Health(Box::new(health::lately(nvml))),
            Ask::Set { uuid, setting } => setting::apply(nvml, uuid, setting),
            Ask::DrainStates { pcis } => {
                Answer::DrainStates(pcis.iter().map(|pci| nvml.is_drained(pci)).collect())
            }
            Ask::Drain { pci, on } => setting::drain(nvml, pci, *on),
        }
    }

    fn open(&mut self) -> Result<&Nvml, Answer> {
        if self.nvml.is_none() {
            self.nvml = Some(Nvml::open().map_err(|error| match error {
                OpenError::NoLibrary(detail) => Answer::NoLibrary { detail },
                OpenError::Init { code, library } => {
                    Answer::InitFailed { code, library: library.map(driver_of) }
                }
            })?);
        }
        self.nvml.as_ref().ok_or_else(|| Answer::NoLibrary { detail: "not loaded".to_owned() })
    }

    fn close(&mut self) {
        if let Some(nvml) = self.nvml.take() {
            nvml.shutdown();
        }
    }
}
