//! GET and LIST, with selectors and pages.

use base64ct::{Base64UrlUnpadded, Encoding as _};
use serde_json::{Value, json};

use super::{Reply, Request, Target};
use crate::cluster::Cluster;
use crate::object::{self, unset};
use crate::selector::{Fields, Labels};
use crate::status::{self, Outcome};
use crate::store::Snapshot;

/// Which objects a list or a watch selects.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    pub namespace: String,
    pub labels: Labels,
    pub fields: Fields,
}

impl Filter {
    pub(crate) fn of(request: &Request, target: &Target<'_>) -> Outcome<Self> {
        Ok(Self {
            namespace: target.namespace.to_owned(),
            labels: Labels::parse(request.parameter("labelSelector").unwrap_or_default())?,
            fields: Fields::parse(request.parameter("fieldSelector").unwrap_or_default(), target.resource)?,
        })
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        (self.namespace.is_empty() || self.namespace == object::namespace(object))
            && self.labels.matches(object)
            && self.fields.matches(object)
    }
}

impl Cluster {
    pub(crate) fn get(&self, target: &Target<'_>) -> Outcome<Reply> {
        let found = self.store.get(target.resource, target.namespace, target.name);
        found
            .map(|object| Reply::json(200, object.clone()))
            .ok_or_else(|| status::not_found(target.resource, target.name))
    }

    pub(crate) fn list(&mut self, request: &Request, target: &Target<'_>) -> Outcome<Reply> {
        let filter = Filter::of(request, target)?;
        let limit = match request.parameter("limit").unwrap_or_default() {
            "" => 0,
            text => text.parse::<usize>().map_err(|_| {
                status::bad_request(format!("strconv.ParseInt: parsing \"{text}\": invalid syntax"))
            })?,
        };
        if let Some(asked) = request.parameter("resourceVersion").and_then(|v| v.parse::<u64>().ok()) {
            self.reachable(asked, request.parameter("resourceVersionMatch") == Some("Exact"))?;
        }
        let (version, mut items) = match request.parameter("continue").filter(|c| !c.is_empty()) {
            None => {
                let all = self
                    .store
                    .all(target.resource, target.namespace)
                    .filter(|o| filter.matches(o))
                    .cloned()
                    .collect::<Vec<_>>();
                (self.store.version(), all)
            }
            Some(token) => self.continued(token, target, &filter)?,
        };
        let mut meta = json!({"resourceVersion": version.to_string()});
        if limit > 0 && items.len() > limit {
            let rest = items.split_off(limit);
            if filter.labels.is_empty() && filter.fields.is_empty() {
                meta["remainingItemCount"] = json!(rest.len());
            }
            let last = items
                .last()
                .map(|o| (object::namespace(o).to_owned(), object::name(o).to_owned()))
                .unwrap_or_default();
            let kept = self.store.keep(Snapshot { version, rest, after: last.clone() });
            meta["continue"] = json!(token(
                &json!({"v": "meta.k8s.io/v1", "rv": version, "page": kept, "after": [last.0, last.1]})
            ));
        }
        for item in &mut items {
            // Items in a list of built-in kinds have no kind.
            unset(item, &["kind"]);
            unset(item, &["apiVersion"]);
        }
        Ok(Reply::json(
            200,
            json!({"kind": target.resource.list_kind(), "apiVersion": target.resource.api_version(), "metadata": meta, "items": items}),
        ))
    }

    /// Returns the next page of a list: of the list as it began, or of the current one if the token says so.
    fn continued(&self, text: &str, target: &Target<'_>, filter: &Filter) -> Outcome<(u64, Vec<Value>)> {
        let refuse = || status::bad_request("continue key is not valid: illegal base64 data at input byte 0");
        let bytes = Base64UrlUnpadded::decode_vec(text).map_err(|_| refuse())?;
        let parsed: Value = serde_json::from_slice(&bytes).map_err(|_| refuse())?;
        let after =
            (object::text(&parsed, "/after/0").to_owned(), object::text(&parsed, "/after/1").to_owned());
        let place = |o: &Value| (object::namespace(o).to_owned(), object::name(o).to_owned());
        if parsed["rv"] == json!(-1) {
            let rest = self
                .store
                .all(target.resource, target.namespace)
                .filter(|o| filter.matches(o) && place(o) > after)
                .cloned()
                .collect();
            return Ok((self.store.version(), rest));
        }
        if let Some(kept) = self.store.kept(object::text(&parsed, "/page")) {
            return Ok((kept.version, kept.rest.clone()));
        }
        let message = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the \
                       continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with \
                       the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the \
                       first chunk was returned and now may show up in the list.";
        let mut failure = status::expired(message);
        failure.details = None;
        Err(self.with_continue(failure, &after))
    }

    fn with_continue(
        &self,
        mut failure: Box<status::Failure>,
        after: &(String, String),
    ) -> Box<status::Failure> {
        let go_on = token(&json!({"v": "meta.k8s.io/v1", "rv": -1, "after": [after.0, after.1]}));
        failure.list_continue = Some(go_on);
        failure
    }

    /// Checks that the server has a version that a client requests.
    fn reachable(&self, asked: u64, exact: bool) -> Outcome<()> {
        let newest = self.store.version();
        if asked > newest {
            let message = format!("Too large resource version: {asked}, current: {newest}");
            let mut failure = status::Failure::new(504, "Timeout", message);
            failure.details = Some(
                json!({"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}], "retryAfterSeconds": 1}),
            );
            return Err(failure);
        }
        if exact && asked != 0 && asked < newest {
            return Err(status::expired("The resourceVersion for the provided list is too old."));
        }
        Ok(())
    }
}

fn token(value: &Value) -> String {
    Base64UrlUnpadded::encode_string(value.to_string().as_bytes())
}
