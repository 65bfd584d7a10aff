//! A fleet's nights in a row: what people ask is answered within a second.
//!
//! A year of 5,000 nodes: `GPUFLEET_YEAR_NIGHTS=365 GPUFLEET_YEAR_NODES=5000 cargo test -p gpufleet-history year -- --nocapture`,
//! with `GPUFLEET_YEAR_STORE` for another store than a file of its own.

use std::{env, io::Write as _, time::Instant};

use super::*;

/// What an answer may take; without optimisation, and beside other tests, only that it is not stuck.
const MOST: Duration = Duration::from_secs(if cfg!(debug_assertions) { 30 } else { 1 });

fn number(name: &str, unless: u32) -> u32 {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(unless)
}

fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

async fn asked<T>(what: &str, question: impl Future<Output = Result<T, StoreError>>) -> T {
    let begin = Instant::now();
    let answer = question.await.unwrap();
    let took = begin.elapsed();
    tell(&format!("{what:12} {:6.1} ms", took.as_secs_f64() * 1000.0));
    assert!(took < MOST, "{what} took {took:?}");
    answer
}

#[test]
fn a_year_is_answered_within_a_second() {
    let (nights, nodes) = (number("GPUFLEET_YEAR_NIGHTS", 20), number("GPUFLEET_YEAR_NODES", 40));
    let folder = tempfile::tempdir().unwrap();
    let url = env::var("GPUFLEET_YEAR_STORE")
        .unwrap_or_else(|_| format!("sqlite:{}", folder.path().join("history.db").display()));
    block_on(async {
        let store = Store::open(&url).await.unwrap();
        let (begin, mut longest) = (Instant::now(), Duration::ZERO);
        for night in 0..nights {
            let audit = sample::night(night, nodes);
            let begin = Instant::now();
            store.record(&audit).await.unwrap();
            longest = longest.max(begin.elapsed());
        }
        tell(&format!(
            "{nights} nights of {nodes} nodes recorded in {:?}, one at most {longest:?}",
            begin.elapsed()
        ));
        if let Ok(file) = std::fs::metadata(folder.path().join("history.db")) {
            tell(&format!("file         {:6.1} MiB", file.len() as f64 / f64::from(1 << 20)));
        }
        let trend = asked("trend", store.audits(None)).await;
        assert_eq!((trend.len(), trend[0].nodes), (nights as usize, nodes));
        let all = asked("nodes", store.nodes()).await;
        assert_eq!(all.len(), nodes as usize);
        let open = asked("since when", store.open_findings()).await;
        let last = sample::night(nights - 1, nodes);
        let judged = last.nodes.iter().filter(|node| node.controls.complete);
        let found: usize = judged.map(|node| node.findings.len()).sum();
        assert!(open.len() >= found && open.iter().any(|open| open.audits > 1), "{} {found}", open.len());
        let node = asked("timeline", store.node("gpu00007")).await.unwrap();
        assert_eq!(node.spans.iter().map(|span| span.audits).sum::<u32>(), nights);
        let check = asked("check", store.control("check.number_00")).await.unwrap();
        assert_eq!(check.trend.len(), nights as usize);
        let names: Vec<String> = all.into_iter().map(|node| node.node).collect();
        let memories = asked("memories", store.memories(&names)).await;
        assert_eq!(memories.len(), nodes as usize);
        let last = &last;
        let earlier =
            asked("earlier", store.earlier(&last.playbooks, &last.baselines, &names, last.started)).await;
        assert_eq!(earlier.unwrap().nodes, nodes);
    });
}
