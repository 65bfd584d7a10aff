//! How shared texts are written to documents.
//!
//! Why not serde's feature `rc`: it is on or off for all crates of a build.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serializer;

pub(crate) fn one<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

#[expect(clippy::ref_option, reason = "serde passes the field")]
pub(crate) fn maybe<S: Serializer>(text: &Option<Arc<str>>, serializer: S) -> Result<S::Ok, S::Error> {
    match text {
        Some(text) => serializer.serialize_some(&**text),
        None => serializer.serialize_none(),
    }
}

pub(crate) fn set<S: Serializer>(texts: &BTreeSet<Arc<str>>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(texts.iter().map(|text| &**text))
}
