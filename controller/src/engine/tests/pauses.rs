//! `pause`, and a person who would rather stop.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::engine::Prompt;

/// Interrupts the run where it has a question or tells of a wait, and answers if it has an answer.
struct Person {
    interrupts: mpsc::Sender<()>,
    interrupted: AtomicBool,
    answer: Option<&'static str>,
}

impl Confirm for Person {
    fn confirm<'a>(&'a self, _: &'a Forecast) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn is_blanket(&self) -> bool {
        true
    }

    fn ask<'a>(&'a self, _: &'a Prompt) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move {
            match self.answer {
                Some(answer) => Some(answer.to_owned()),
                None => {
                    self.interrupts.send(()).await.unwrap();
                    std::future::pending().await
                }
            }
        })
    }

    fn tell(&self, _: &str) {
        // Why once: a second one would not wait for a safe point.
        if self.answer.is_none() && !self.interrupted.swap(true, Ordering::Relaxed) {
            self.interrupts.try_send(()).unwrap();
        }
    }
}

fn ran(world: &World, hosts: &[String]) -> Vec<String> {
    hosts.iter().map(|host| world.with(host, |machine| format!("{:?}", machine.ran))).collect()
}

#[test]
fn an_interrupt_at_a_pause_stops_there_and_a_resume_pauses_again() {
    for pause in ["prompt: go on?", "seconds: 3600"] {
        virtual_time(async {
            let text = format!(
                "- hosts: all\n  gather_facts: false\n  tasks:\n    - {{name: first, command: /bin/first}}\n    \
                 - pause: {{{pause}}}\n    - {{name: second, command: /bin/second}}\n"
            );
            let (hosts, state) = (hosts(2), tempfile::tempdir().unwrap());
            let world = World::new(&hosts, false);
            let dir = RunDir::new(state.path(), &RunId::generate());
            for (epoch, answer) in [(1, None), (2, None), (3, Some("yes"))] {
                let (sender, mut interrupts) = mpsc::channel(1);
                let mut engine = engine(&text, &world, &hosts, epoch);
                engine.confirm =
                    Arc::new(Person { interrupts: sender, interrupted: AtomicBool::new(false), answer });
                let begun = tokio::time::Instant::now();
                let result = process_with(engine, &world, &hosts, &dir, &mut interrupts).await.unwrap();
                let stopped = answer.is_none();
                assert_eq!(result.stop.is_some(), stopped, "{pause} {epoch}: {:?}", result.stop);
                for ran in ran(&world, &hosts) {
                    assert!(
                        ran.contains("first") && ran.contains("second") != stopped,
                        "{pause} {epoch}: {ran}"
                    );
                }
                if stopped {
                    assert!(begun.elapsed().as_secs() < 60, "{pause} {epoch}: {:?}", begun.elapsed());
                }
            }
        });
    }
}
