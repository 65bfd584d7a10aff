//! The API as a function of the cluster: a request in, a reply out.
//!
//! Must not know sockets and TLS. [`Cluster::handle`] follows the real server's chain of handlers, in its order:
//! authentication, authorisation, path, verb.

pub mod delete;
pub mod discovery;
pub mod evict;
pub mod read;
pub mod watch;
pub mod write;

use serde_json::Value;

use crate::cluster::{Actor, Cluster};
use crate::faults::Action;
use crate::resources::{Resource, by_plural};
use crate::status::{self, Failure, Outcome};
use watch::Cursor;

/// One request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub query: Vec<(String, String)>,
    pub content_type: String,
    pub user_agent: String,
    pub bearer: Option<String>,
    /// The client's certificate, DER.
    pub certificate: Option<Vec<u8>>,
    pub body: Vec<u8>,
    /// Whether faults were applied already: a delayed request is handed in again.
    pub met: bool,
}

impl Request {
    /// Returns a parameter of the query.
    pub fn parameter(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    pub(crate) fn wants(&self, key: &str) -> bool {
        matches!(self.parameter(key), Some("true" | "1"))
    }

    /// Returns the field manager: as given in the request, else the first part of the user agent.
    pub fn manager(&self) -> &str {
        if let Some(manager) = self.parameter("fieldManager").filter(|manager| !manager.is_empty()) {
            return manager;
        }
        self.user_agent.split('/').next().filter(|m| !m.is_empty()).unwrap_or("unknown")
    }
}

/// The body of a reply.
#[derive(Clone, Debug)]
pub enum Body {
    Json(Value),
    Text(String),
    Watch(Box<Cursor>),
}

/// How the connection delivers a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    #[default]
    Whole,
    /// The connection ends instead.
    Cut,
    /// The connection ends in the middle of the body.
    Half,
    /// Nothing was done yet: the request must be handed in again after this time.
    Again,
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub code: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Body,
    /// How long the reply takes, on the server's clock.
    pub after_ms: i64,
    pub delivery: Delivery,
}

impl Reply {
    pub(crate) fn json(code: u16, body: Value) -> Self {
        Self { code, headers: Vec::new(), body: Body::Json(body), after_ms: 0, delivery: Delivery::Whole }
    }

    fn text(code: u16, body: &str) -> Self {
        Self {
            code,
            headers: Vec::new(),
            body: Body::Text(body.to_owned()),
            after_ms: 0,
            delivery: Delivery::Whole,
        }
    }

    fn failure(failure: &Failure) -> Self {
        let mut reply = Self::json(failure.code, failure.body());
        if let Some(seconds) = failure.retry_after_s {
            reply.headers.push(("Retry-After", seconds.to_string()));
        }
        reply
    }

    pub(crate) fn warn(mut self, unknown: &[String]) -> Self {
        for field in unknown {
            self.headers.push(("Warning", format!("299 - \"unknown field \\\"{field}\\\"\"")));
        }
        self
    }
}

/// The parts of a path.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    pub resource: &'static Resource,
    pub namespace: &'a str,
    pub name: &'a str,
    pub sub: &'a str,
}

impl<'a> Target<'a> {
    /// Parses `/api/v1/…` and `/apis/GROUP/VERSION/…`.
    fn parse(path: &'a str) -> Option<Self> {
        let mut parts = path.trim_matches('/').split('/');
        let (group, version) = match parts.next()? {
            "api" => ("", parts.next()?),
            "apis" => (parts.next()?, parts.next()?),
            _ => return None,
        };
        let rest: Vec<&str> = parts.collect();
        let known = |plural: &str| by_plural(group, plural).filter(|r| r.version == version);
        let (resource, namespace, rest) = match rest.as_slice() {
            ["namespaces", namespace, plural, rest @ ..] if known(plural).is_some_and(|r| r.namespaced) => {
                (known(plural)?, *namespace, rest)
            }
            [plural, rest @ ..] => (known(plural)?, "", rest),
            [] => return None,
        };
        let (name, sub) = match rest {
            [] => ("", ""),
            [name] => (*name, ""),
            [name, sub] => (*name, *sub),
            _ => return None,
        };
        // A namespaced object cannot be named without its namespace.
        let homeless = resource.namespaced && namespace.is_empty() && !name.is_empty();
        if homeless { None } else { Some(Self { resource, namespace, name, sub }) }
    }

    fn verb(&self, request: &Request) -> Option<&'static str> {
        Some(match (request.method.as_str(), self.name.is_empty()) {
            ("GET", true) if request.wants("watch") => "watch",
            ("GET", true) => "list",
            ("GET", false) => "get",
            ("POST", _) => "create",
            ("PUT", false) => "update",
            ("PATCH", false) => "patch",
            ("DELETE", false) => "delete",
            ("DELETE", true) => "deletecollection",
            _ => return None,
        })
    }
}

impl Cluster {
    /// Answers a request.
    pub fn handle(&mut self, request: &Request) -> Reply {
        if let Some(reply) = discovery::open(&request.path) {
            return reply;
        }
        let user = self.access.user(request.bearer.as_deref(), request.certificate.as_deref(), self.now_ms);
        let Some(user) = user else {
            return Reply::failure(&status::unauthorized());
        };
        let actor = Actor::new(user, request.manager());
        if let Some(reply) = discovery::answer(self, &actor, request) {
            return reply;
        }
        let Some(target) = Target::parse(&request.path) else {
            let known = request.path.starts_with("/api/v1") || request.path.starts_with("/apis/");
            return if known {
                Reply::failure(&status::no_such_resource())
            } else {
                Reply::text(404, "404 page not found\n")
            };
        };
        let Some(verb) = target.verb(request) else {
            return Reply::failure(&status::method_not_allowed());
        };
        self.met(&actor, request, &target, verb)
    }

    /// Applies a fault to the request, if one matches, and logs it.
    fn met(&mut self, actor: &Actor, request: &Request, target: &Target<'_>, verb: &'static str) -> Reply {
        let logged = match target.sub {
            "eviction" => "evict",
            "binding" => "bind",
            _ => verb,
        };
        let fault = if request.met {
            None
        } else {
            self.faults.meet(logged, target.resource.plural, target.name, &actor.user)
        };
        if let Some(Action::SlowAction { by }) = &fault {
            return Reply { after_ms: by.0, delivery: Delivery::Again, ..Reply::text(0, "") };
        }
        let refusal = match &fault {
            Some(Action::CutBefore) => Some(Reply { delivery: Delivery::Cut, ..Reply::text(0, "") }),
            Some(Action::Conflict) => Some(Reply::failure(&status::modified(target.resource, target.name))),
            Some(Action::Internal) => {
                Some(Reply::failure(&status::internal("etcdserver: request timed out")))
            }
            Some(Action::Unavailable) => {
                let mut failure = Failure::new(
                    503,
                    "ServiceUnavailable",
                    "the server is currently unable to handle the request",
                );
                failure.retry_after_s = Some(1);
                Some(Reply::failure(&failure))
            }
            Some(Action::Unauthorized) => Some(Reply::failure(&status::unauthorized())),
            Some(Action::Overload { retry_after_s }) => {
                let mut reply = Reply::text(429, "Too many requests, please try again later.\n");
                reply.headers.push(("Retry-After", retry_after_s.to_string()));
                Some(reply)
            }
            _ => None,
        };
        let mut reply = match refusal {
            Some(reply) => reply,
            None => {
                let outcome = self
                    .permitted(actor, request, target, verb)
                    .and_then(|()| self.act(actor, request, target, verb));
                outcome.unwrap_or_else(|failure| Reply::failure(&failure))
            }
        };
        self.note_request(actor, request, target, logged, &reply, fault.as_ref());
        match fault {
            Some(Action::CutAfter) => reply.delivery = Delivery::Cut,
            Some(Action::CutReply) => reply.delivery = Delivery::Half,
            Some(Action::SlowReply { by }) => reply.after_ms += by.0,
            Some(Action::TimeoutAfter) => {
                let message =
                    "Timeout: request did not complete within requested timeout - context deadline exceeded";
                reply = Reply::failure(&Failure::new(504, "Timeout", message));
            }
            Some(Action::ExpiredWatch) => {
                let failure = status::expired("too old resource version");
                reply = Reply::failure(&failure);
            }
            Some(Action::SilentWatch | Action::SlowWatch { .. } | Action::BrokenWatch { .. }) => {
                if let Body::Watch(cursor) = &mut reply.body {
                    cursor.trouble = fault;
                }
            }
            _ => {}
        }
        reply
    }

    fn permitted(&self, actor: &Actor, request: &Request, target: &Target<'_>, verb: &str) -> Outcome<()> {
        let what = if target.sub.is_empty() {
            target.resource.plural.to_owned()
        } else {
            format!("{}/{}", target.resource.plural, target.sub)
        };
        let verb = if verb == "get" && request.wants("watch") { "watch" } else { verb };
        if self.access.denies(&actor.user, verb, &what, target.namespace) {
            return Err(status::forbidden(
                &actor.user,
                verb,
                target.resource,
                target.sub,
                target.namespace,
                target.name,
            ));
        }
        Ok(())
    }

    fn act(&mut self, actor: &Actor, request: &Request, target: &Target<'_>, verb: &str) -> Outcome<Reply> {
        match (verb, target.sub) {
            ("create", "eviction") if target.resource.plural == "pods" => self.evict(actor, request, target),
            ("create", "binding") if target.resource.plural == "pods" => self.post_binding(request, target),
            ("create", "") if target.name.is_empty() => self.post(actor, request, target),
            ("get", "" | "status") => self.get(target),
            ("list", _) => self.list(request, target),
            ("watch", _) => self.watch(request, target),
            ("update", "" | "status" | "finalize") => self.put(actor, request, target),
            ("patch", "" | "status") => self.patch(actor, request, target),
            ("delete", "") => self.delete_request(actor, request, target),
            ("deletecollection", "") => self.delete_all(actor, request, target),
            (_, "") => Err(status::method_not_allowed()),
            _ => Err(status::no_such_resource()),
        }
    }

    fn note_request(
        &mut self,
        actor: &Actor,
        request: &Request,
        target: &Target<'_>,
        verb: &str,
        reply: &Reply,
        fault: Option<&Action>,
    ) {
        if matches!(verb, "get" | "list" | "watch") && !self.log_reads && fault.is_none() {
            return;
        }
        let mut entry = self.entry(actor, verb, target.resource, target.namespace, target.name);
        entry.code = reply.code;
        if let Body::Json(body) = &reply.body
            && reply.code >= 400
        {
            crate::object::text(body, "/reason").clone_into(&mut entry.reason);
            entry.message = match crate::object::text(body, "/details/causes/0/message") {
                "" => crate::object::text(body, "/message").to_owned(),
                cause => cause.to_owned(),
            };
        }
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        if entry.name.is_empty() {
            crate::object::name(&body).clone_into(&mut entry.name);
        }
        entry.dry_run = request.parameter("dryRun").is_some()
            || [&body["deleteOptions"]["dryRun"], &body["dryRun"]]
                .iter()
                .any(|d| d.as_array().is_some_and(|a| !a.is_empty()));
        entry.detail = body;
        if let Some(fault) = fault {
            let told = serde_json::json!({"fault": fault, "body": entry.detail.take()});
            entry.detail = told;
        }
        self.log.push(entry);
    }
}
