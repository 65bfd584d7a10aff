//! `status --watch`: the screen and its readings.
//!
//! Each node has a task that keeps one connection and one helper, and reads again after the interval; a node that hangs
//! delays only itself. The terminal is restored on every way out, a panic included.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use gpufleet::{
    engine::{Connector as _, Link, Purpose},
    session::Fleet,
};
use gpufleet_protocol::op::GpuStatusRequest;
use gpufleet_status::{Do, Heard, Line, Screen, Wanted};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    adhoc::{Reach, reach},
    args::StatusArgs,
    engine,
    environment::Environment,
    error::CommandError,
    output::Output,
    status::{ask, groups_of, target},
};

/// Shortest time between two pictures that no key asked for.
const CALM: Duration = Duration::from_millis(250);
/// Ages change once in this time.
const AGES: Duration = Duration::from_secs(1);
/// How often the thread of the keyboard looks whether it is still needed.
const KEYBOARD: Duration = Duration::from_millis(100);
/// Longest time between two attempts to connect.
const PATIENCE: Duration = Duration::from_secs(60);
/// After so long without GPUs the helper starts anew: one session does not ask a driver again that hung twice.
const ANEW: Duration = Duration::from_secs(300);
/// How long the helpers may take to end.
const GOODBYE: Duration = Duration::from_secs(2);

/// Exit code of a program that a signal ended.
const INTERRUPTED: u8 = 130;

pub fn watch<R: Line>(
    args: &StatusArgs,
    wanted: Wanted<R>,
    environment: &Environment,
    output: &Output,
) -> Result<u8, CommandError> {
    if !environment.stdin_is_terminal || !environment.stdout_is_terminal {
        return Err(CommandError::user("`--watch` needs a terminal for its table and its keys")
            .hint("without it the table is printed once; `-o json` is for programs"));
    }
    let target = target(args);
    let Reach { fleet, hosts, inventory } = reach(&target, environment, output)?;
    let nodes: Vec<_> =
        hosts.iter().map(|host| (host.as_str().into(), groups_of(&inventory, host))).collect();
    let interval = wanted.interval;
    let screen = Screen::new(wanted, nodes);
    let follower = Follower {
        fleet: Arc::new(fleet),
        purpose: target.purpose,
        window_s: args.window,
        interval,
        places: Arc::new(Semaphore::new(args.access.connection.forks())),
        end: CancellationToken::new(),
    };
    engine::block_on(follow(screen, hosts, follower))?.map_err(CommandError::from)
}

/// Reads the nodes and shows them until somebody leaves; returns the exit code.
async fn follow<R: Line>(screen: Screen<R>, hosts: Vec<String>, follower: Follower) -> io::Result<u8> {
    let (sender, heard) = mpsc::channel(1024);
    let end = follower.end.clone();
    let mut followers = JoinSet::new();
    for (at, host) in hosts.into_iter().enumerate() {
        let (follower, sender) = (follower.clone(), sender.clone());
        followers.spawn(async move { follower.follow(at, &host, &sender).await });
    }
    drop(sender);
    let shown = show(screen, heard).await;
    end.cancel();
    // Why bounded: a node that hangs must not keep anybody from leaving.
    let _ = tokio::time::timeout(GOODBYE, async { while followers.join_next().await.is_some() {} }).await;
    followers.abort_all();
    shown
}

/// Restores the terminal when it is dropped.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

async fn show<R: Line>(mut screen: Screen<R>, mut heard: mpsc::Receiver<(usize, Heard)>) -> io::Result<u8> {
    let mut interrupted =
        [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?];
    let [interrupt, terminate, hangup] = &mut interrupted;
    let begun = Instant::now();
    // It also sets a panic hook that restores the terminal.
    let mut terminal = ratatui::try_init()?;
    let _restore = Restore;
    let mut keyboard = Keyboard::start();
    let mut ticks = tokio::time::interval(CALM);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut changed, mut drawn) = (true, begun);
    loop {
        let mut now = false;
        tokio::select! {
            event = keyboard.events.recv() => match event {
                Some(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    if screen.key(key) == Do::Leave {
                        return Ok(0);
                    }
                    now = true;
                }
                Some(Event::Resize(..)) => now = true,
                Some(_) => {}
                // The terminal is gone.
                None => return Ok(INTERRUPTED),
            },
            Some((at, what)) = heard.recv() => {
                screen.hear(at, begun.elapsed(), what);
                changed = true;
            }
            _ = ticks.tick() => now = changed || drawn.elapsed() >= AGES,
            _ = interrupt.recv() => return Ok(INTERRUPTED),
            _ = terminate.recv() => return Ok(INTERRUPTED),
            _ = hangup.recv() => return Ok(INTERRUPTED),
        }
        if now {
            terminal.draw(|frame| screen.draw(frame, begun.elapsed()))?;
            (changed, drawn) = (false, Instant::now());
        }
    }
}

/// The keys, read by a thread, because reading them blocks.
struct Keyboard {
    events: mpsc::Receiver<Event>,
    end: Arc<AtomicBool>,
}

impl Keyboard {
    fn start() -> Self {
        let (sender, events) = mpsc::channel(64);
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                match event::poll(KEYBOARD) {
                    Ok(false) => {}
                    Ok(true) => {
                        let Ok(event) = event::read() else { break };
                        if sender.blocking_send(event).is_err() {
                            break;
                        }
                    }
                    Err(_) => break,
                }
            }
        });
        Self { events, end }
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
    }
}

/// Reads one node again and again.
#[derive(Clone)]
struct Follower {
    fleet: Arc<Fleet>,
    purpose: Purpose,
    window_s: u32,
    interval: Duration,
    /// Nodes that are connected to at the same time.
    places: Arc<Semaphore>,
    end: CancellationToken,
}

impl Follower {
    async fn follow(&self, at: usize, host: &str, to: &mpsc::Sender<(usize, Heard)>) {
        let mut pause = self.interval;
        loop {
            let connected = async {
                let _place = self.places.acquire().await;
                self.fleet.connect(host, self.purpose).await
            };
            let link = tokio::select! {
                link = connected => link,
                () = self.end.cancelled() => return,
            };
            let why = match link {
                Ok(link) => {
                    let begun = Instant::now();
                    let ended = tokio::select! {
                        ended = self.read(at, link.as_ref(), to) => ended,
                        () = self.end.cancelled() => Ended::Left,
                    };
                    if begun.elapsed() > PATIENCE {
                        pause = self.interval;
                    }
                    let _ = tokio::time::timeout(GOODBYE, link.close()).await;
                    match ended {
                        Ended::Left => return,
                        Ended::Anew => continue,
                        Ended::Lost(why) => why,
                    }
                }
                Err(error) => error.to_string(),
            };
            if to.send((at, Heard::Failed(why))).await.is_err() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.end.cancelled() => return,
            }
            pause = (pause * 2).min(PATIENCE.max(self.interval));
        }
    }

    async fn read(&self, at: usize, link: &dyn Link, to: &mpsc::Sender<(usize, Heard)>) -> Ended {
        let mut without = None;
        loop {
            let begun = Instant::now();
            let heard = match ask(link, GpuStatusRequest { window_s: self.window_s, profiles: false }).await {
                Ok(heard) => heard,
                Err(why) => return Ended::Lost(why),
            };
            let is_read = matches!(&heard, Heard::Status(status) if !status.gpus.is_empty());
            if to.send((at, heard)).await.is_err() {
                return Ended::Left;
            }
            match (is_read, without) {
                (true, _) => without = None,
                (false, None) => without = Some(begun),
                (false, Some(since)) if begun.duration_since(since) > ANEW => return Ended::Anew,
                (false, Some(_)) => {}
            }
            tokio::time::sleep_until(begun + self.interval).await;
        }
    }
}

/// Why a connection is not read any more.
enum Ended {
    /// Somebody leaves.
    Left,
    /// It should begin anew.
    Anew,
    /// It broke.
    Lost(String),
}
