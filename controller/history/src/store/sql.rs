//! Statements with many rows, the same text for SQLite and PostgreSQL.

use sqlx::{AnyConnection, AssertSqlSafe, Row as _, any::AnyRow, query::Query};

use crate::error::Fault;

/// Rows of one statement: more save little, and make a long text to be parsed.
const ROWS: usize = 128;

/// A value that both databases know. There is no NULL: the drivers differ in its type.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Number(i64),
    Text(String),
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Number(flag.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(if text.contains('\0') { storable(&text) } else { text })
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(storable(text))
    }
}

/// A text as it is kept: PostgreSQL takes no NUL.
pub(super) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

pub(super) type AnyQuery<'a> = Query<'a, sqlx::Any, sqlx::any::AnyArguments>;

pub(super) fn bind(query: AnyQuery<'_>, value: Value) -> AnyQuery<'_> {
    match value {
        Value::Number(number) => query.bind(number),
        Value::Text(text) => query.bind(text),
    }
}

/// Carries out `INSERT INTO …` for all rows; `tail` is what stands behind `VALUES …`.
pub(super) async fn insert(
    connection: &mut AnyConnection,
    into: &'static str,
    tail: &'static str,
    rows: Vec<Vec<Value>>,
) -> Result<(), Fault> {
    let mut rows = rows.into_iter().peekable();
    while rows.peek().is_some() {
        let chunk: Vec<Vec<Value>> = rows.by_ref().take(ROWS).collect();
        let mut number = 0;
        let mut place = || {
            number += 1;
            format!("${number}")
        };
        let row = |row: &Vec<Value>| {
            let places: Vec<String> = row.iter().map(|_| place()).collect();
            format!("({})", places.join(","))
        };
        let values: Vec<String> = chunk.iter().map(row).collect();
        let text = format!("INSERT INTO {into} VALUES {} {tail}", values.join(","));
        // Safe: texts of this crate and numbers of places.
        let query = sqlx::query(AssertSqlSafe(text));
        let query = chunk.into_iter().flatten().fold(query, bind);
        query.execute(&mut *connection).await?;
    }
    Ok(())
}

/// Carries out a statement in which `{}` stands for a list, for each part of a long list, and returns all rows.
pub(super) async fn select_in(
    connection: &mut AnyConnection,
    statement: &'static str,
    list: impl IntoIterator<Item = Value>,
) -> Result<Vec<AnyRow>, Fault> {
    select_of_in(connection, statement, &[], list).await
}

/// The same, where `$1` and so on stand for what comes first.
pub(super) async fn select_of_in(
    connection: &mut AnyConnection,
    statement: &'static str,
    first: &[Value],
    list: impl IntoIterator<Item = Value>,
) -> Result<Vec<AnyRow>, Fault> {
    let mut list = list.into_iter().peekable();
    let mut all = Vec::new();
    while list.peek().is_some() {
        let chunk: Vec<Value> = list.by_ref().take(ROWS * 4).collect();
        let places: Vec<String> =
            (1..=chunk.len()).map(|number| format!("${}", first.len() + number)).collect();
        let text = statement.replacen("{}", &format!("({})", places.join(",")), 1);
        // Safe: texts of this crate and numbers of places.
        let query = sqlx::query(AssertSqlSafe(text));
        let query = first.iter().cloned().chain(chunk).fold(query, bind);
        all.extend(query.fetch_all(&mut *connection).await?);
    }
    Ok(all)
}

pub(super) fn number(row: &AnyRow, column: &str) -> Result<i64, Fault> {
    Ok(row.try_get::<i64, _>(column)?)
}

pub(super) fn text(row: &AnyRow, column: &str) -> Result<String, Fault> {
    Ok(row.try_get::<String, _>(column)?)
}

pub(super) fn count(row: &AnyRow, column: &str) -> Result<u32, Fault> {
    let count = number(row, column)?;
    u32::try_from(count).map_err(|_| Fault::damaged(format!("{column} is {count}")))
}
