//! The history of audits in a real PostgreSQL: the same answers as in SQLite, several controllers at once.

use std::thread;

use gpufleet_history::{Audit, Recorded, Store, sample};
use gpufleet_systems_tests::{PASSWORD, Postgres};

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

#[test]
fn postgresql_and_sqlite_give_equal_answers() {
    let (server, folder) = (Postgres::start(), tempfile::tempdir().unwrap());
    block_on(async {
        for seed in 0..8 {
            assert!(server.make_database());
            let audits = sample::random(seed, 12);
            let postgres = Store::open(&server.url(PASSWORD)).await.unwrap();
            let sqlite = format!("sqlite:{}", folder.path().join(format!("{seed}.db")).display());
            let sqlite = Store::open(&sqlite).await.unwrap();
            for audit in &audits {
                sqlite.record(audit).await.unwrap();
            }
            for audit in sample::shuffled(&audits, seed) {
                assert_eq!(postgres.record(&audit).await.unwrap(), Recorded::New);
                assert_eq!(postgres.record(&audit).await.unwrap(), Recorded::Known);
            }
            let said = sample::answers(&sqlite, &audits).await.unwrap();
            assert_eq!(said, sample::answers(&postgres, &audits).await.unwrap(), "seed {seed}");
            let cut = audits[5].started;
            assert_eq!(sqlite.prune(cut).await.unwrap(), postgres.prune(cut).await.unwrap());
            sqlite.replace(audits.clone()).await.unwrap();
            postgres.replace(audits.clone()).await.unwrap();
            let said = sample::answers(&sqlite, &audits).await.unwrap();
            assert_eq!(said, sample::answers(&postgres, &audits).await.unwrap(), "pruned, seed {seed}");
            postgres.close().await;
        }
    });
}

#[test]
fn controllers_that_begin_and_write_at_once_lose_nothing() {
    const CONTROLLERS: u32 = 4;
    const NIGHTS: u32 = 6;
    let server = Postgres::start();
    let url = server.url(PASSWORD);
    thread::scope(|scope| {
        for controller in 0..CONTROLLERS {
            let url = &url;
            scope.spawn(move || {
                block_on(async move {
                    // All of them find an empty database, and make the schema.
                    let store = Store::open(url).await.unwrap();
                    for night in 0..NIGHTS {
                        let audit = sample::night(night * CONTROLLERS + controller, 20);
                        assert_eq!(store.record(&audit).await.unwrap(), Recorded::New);
                    }
                });
            });
        }
    });
    let all: Vec<Audit> = (0..NIGHTS * CONTROLLERS).map(|night| sample::night(night, 20)).collect();
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let one = Store::open(&format!("sqlite:{}", folder.path().join("one.db").display())).await.unwrap();
        for audit in &all {
            one.record(audit).await.unwrap();
        }
        let shared = Store::open(&url).await.unwrap();
        assert_eq!(sample::answers(&one, &all).await.unwrap(), sample::answers(&shared, &all).await.unwrap());
    });
}

#[test]
fn errors_name_the_store_and_never_its_password() {
    let server = Postgres::start();
    block_on(async {
        let error = Store::open(&server.url("wr0ng")).await.unwrap_err().to_string();
        assert!(error.contains("password authentication failed") && error.contains("fleet:***@"), "{error}");
        assert!(!error.contains("wr0ng"), "{error}");
        let encrypted = format!("{}&sslmode=require", server.url(PASSWORD));
        let error = Store::open(&encrypted).await.unwrap_err().to_string();
        assert!(!error.contains(PASSWORD), "{error}");
        let nowhere = "postgres://fleet:hidden@127.0.0.1:1/fleet";
        let error = Store::open(nowhere).await.unwrap_err().to_string();
        assert!(error.contains("127.0.0.1:1") && !error.contains("hidden"), "{error}");
    });
}
