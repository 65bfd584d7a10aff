//! The store: opening it, its schema, and what is asked of it.

mod derive;
mod intern;
mod prune;
mod read;
mod record;
mod sql;
#[cfg(test)]
mod tests;
mod words;

pub use self::{read::Earlier, record::Recorded};

use std::{fs::OpenOptions, io, os::unix::fs::OpenOptionsExt as _, path::Path, sync::Arc, time::Duration};

use sqlx::{
    Any, AnyConnection, AnyPool, ConnectOptions as _, Connection as _, Executor as _, Transaction,
    any::{AnyConnectOptions, AnyPoolOptions},
};

use crate::{
    Place, StoreError,
    error::Fault,
    place::{Kind, sqlite_url},
};

/// The schema, step by step. A step that was released is never changed.
const MIGRATIONS: &[&str] = &[include_str!("../migrations/0001.sql")];
/// The version of [`MIGRATIONS`].
const KNOWN: i64 = MIGRATIONS.len() as i64;
/// What writers of one store lock, so that they write one after the other.
const LOCK: &str = "DO $$ BEGIN PERFORM pg_advisory_xact_lock(7305808869231650918); END $$";
/// How long a writer waits for another one, and a command for a connection.
const PATIENCE: Duration = Duration::from_secs(30);
/// Connections of one process.
const CONNECTIONS: u32 = 4;

/// What audits found over time.
///
/// It may be shared: each call takes a connection of its own. Several processes, on several machines with PostgreSQL, may write
/// at the same time.
#[derive(Clone, Debug)]
pub struct Store {
    pool: AnyPool,
    place: Arc<Place>,
}

impl Store {
    /// Opens a store, which is made where there is none: `sqlite:PATH` for its owner alone, `postgres://…` in a database that
    /// exists.
    ///
    /// # Errors
    /// It cannot be reached or made, or is of a newer gpufleet.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::at(&Place::parse(url)?).await
    }

    /// Opens the store at a place.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub async fn at(place: &Place) -> Result<Self, StoreError> {
        sqlx::any::install_default_drivers();
        let failed = |cause: String| StoreError::Open { store: place.to_string(), cause };
        let url = match place.kind() {
            Kind::Sqlite(path) => prepare(path).map_err(|error| failed(error.to_string()))?,
            Kind::Postgres(url) => url.clone(),
        };
        let is_sqlite = matches!(place.kind(), Kind::Sqlite(_));
        let options = url
            .parse::<AnyConnectOptions>()
            .map_err(|error| failed(masked(&error.to_string(), place)))?
            .disable_statement_logging();
        // Why one before the pool: that one tries again and again, and does not say what failed.
        let first = async {
            let mut connection = AnyConnection::connect_with(&options).await?;
            if is_sqlite {
                set_up(&mut connection).await?;
            }
            connection.close().await
        };
        match tokio::time::timeout(PATIENCE, first).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(failed(masked(&error.to_string(), place))),
            Err(_) => return Err(failed(format!("no answer within {} s", PATIENCE.as_secs()))),
        }
        let pool = AnyPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(PATIENCE)
            .after_connect(move |connection, _| {
                Box::pin(async move {
                    if is_sqlite {
                        set_up(connection).await?;
                    }
                    Ok(())
                })
            });
        let store = Self { pool: pool.connect_lazy_with(options), place: Arc::new(place.clone()) };
        store.migrate().await.map_err(|fault| match store.named(fault) {
            StoreError::Failed { store, cause } => StoreError::Open { store, cause },
            other => other,
        })?;
        Ok(store)
    }

    /// Where it is; shown without its password.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Ends its connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    fn named(&self, fault: Fault) -> StoreError {
        let store = self.place.to_string();
        match fault {
            Fault::Sql(error) => StoreError::Failed { cause: masked(&error.to_string(), &self.place), store },
            Fault::Damaged(what) => StoreError::Damaged { store, what },
            Fault::Newer(found) => StoreError::Newer { store, found, known: KNOWN },
        }
    }

    /// Begins to write; other writers wait.
    async fn write(&self) -> Result<Transaction<'static, Any>, Fault> {
        if matches!(self.place.kind(), Kind::Sqlite(_)) {
            // Why not at the first statement that writes: one that has read could not wait for another writer then.
            return Ok(self.pool.begin_with("BEGIN IMMEDIATE").await?);
        }
        let mut transaction = self.pool.begin().await?;
        transaction.execute(LOCK).await?;
        Ok(transaction)
    }

    /// Begins to read: everything is as of one moment.
    async fn reading(&self) -> Result<Transaction<'static, Any>, Fault> {
        if matches!(self.place.kind(), Kind::Sqlite(_)) {
            return Ok(self.pool.begin().await?);
        }
        Ok(self.pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?)
    }

    async fn migrate(&self) -> Result<(), Fault> {
        let mut transaction = self.write().await?;
        transaction
            .execute("CREATE TABLE IF NOT EXISTS gpufleet_schema (version BIGINT PRIMARY KEY)")
            .await?;
        let at = version(&mut transaction).await?;
        if at > KNOWN {
            return Err(Fault::Newer(at));
        }
        for (number, step) in (1..).zip(MIGRATIONS).filter(|(number, _)| *number > at) {
            sqlx::raw_sql(*step).execute(&mut *transaction).await?;
            sqlx::query("INSERT INTO gpufleet_schema (version) VALUES ($1)")
                .bind(number)
                .execute(&mut *transaction)
                .await?;
        }
        Ok(transaction.commit().await?)
    }
}

async fn version(connection: &mut AnyConnection) -> Result<i64, Fault> {
    let row = sqlx::query("SELECT coalesce(max(version), 0) AS version FROM gpufleet_schema")
        .fetch_one(connection)
        .await?;
    sql::number(&row, "version")
}

/// Makes the file of a store, if there is none, for its owner alone, and returns its URL.
fn prepare(path: &Path) -> io::Result<String> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    sqlite_url(path)
}

/// Sets up a connection to SQLite. Its write-ahead log lets readers read while one writes.
async fn set_up(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    connection
        .execute(sqlx::AssertSqlSafe(format!("PRAGMA busy_timeout = {}", PATIENCE.as_millis())))
        .await?;
    let mut tries = 0;
    // Why again: SQLite does not wait for others where it changes the kind of its journal.
    while let Err(error) = connection.execute("PRAGMA journal_mode = WAL").await {
        tries += 1;
        if tries > 100 {
            return Err(error);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    connection.execute("PRAGMA synchronous = NORMAL").await?;
    Ok(())
}

/// A driver's words without the password, should they have it.
fn masked(text: &str, place: &Place) -> String {
    match place.password().filter(|password| !password.is_empty()) {
        Some(password) => text.replace(password, "***"),
        None => text.to_owned(),
    }
}
