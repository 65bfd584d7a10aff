//! Why the store could not do its work.

use thiserror::Error;

/// An error of the store. The store is named without its password.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("`{given}` is no store; it is `sqlite:PATH` or `postgres://USER@HOST/DATABASE`")]
    Url { given: String },
    #[error("cannot open the store {store}: {cause}")]
    Open { store: String, cause: String },
    #[error("the store {store} is of a newer gpufleet: its schema is {found}, this one knows {known}")]
    Newer { store: String, found: i64, known: i64 },
    #[error("the store {store} failed: {cause}")]
    Failed { store: String, cause: String },
    #[error("the store {store} is damaged: {what}")]
    Damaged { store: String, what: String },
}

/// What goes wrong inside of the crate, before the store is named.
#[derive(Debug, Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
    #[error("{0}")]
    Damaged(String),
    #[error("schema {0}")]
    Newer(i64),
}

impl Fault {
    pub fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }
}
