//! Names of files.

use super::{Filter, text_of};
use crate::template::value::Value;

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("basename", |call| {
        let text = call.text()?;
        Ok(text.rsplit('/').next().unwrap_or_default().into())
    }),
    ("dirname", |call| {
        let text = call.text()?;
        Ok(match text.rsplit_once('/') {
            Some((dir, _)) if dir.trim_end_matches('/').is_empty() => "/".into(),
            Some((dir, _)) => dir.trim_end_matches('/').into(),
            None => "".into(),
        })
    }),
    ("splitext", |call| {
        let text = call.text()?;
        let base = text.rfind('/').map_or(0, |slash| slash + 1);
        let name = text.get(base..).unwrap_or_default();
        let hidden = name.len() - name.trim_start_matches('.').len();
        let dot = name
            .rfind('.')
            .filter(|dot| *dot > hidden.saturating_sub(1) && *dot >= hidden)
            .filter(|dot| *dot > 0);
        let split = dot.map_or(text.len(), |dot| base + dot);
        let (stem, extension) = text.split_at(split);
        Ok(Value::list(vec![stem.into(), extension.into()]))
    }),
    ("path_join", |call| {
        let parts = match call.value() {
            Value::List(list) => list.items().to_vec(),
            _ => call.args.clone(),
        };
        let mut path = String::new();
        for part in parts {
            let part = text_of(&part)?;
            if part.starts_with('/') {
                path = part;
            } else {
                if !path.is_empty() && !path.ends_with('/') {
                    path.push('/');
                }
                path.push_str(&part);
            }
        }
        Ok(path.into())
    }),
];
