//! Addresses, and what answers them.
//!
//! Addresses last: `/nodes/NAME`, `/checks/ID`, `/runs/ID` and all below `/api/v1` keep their meaning.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use axum::{
    Form, Router,
    body::Body,
    extract::{DefaultBodyLimit, Path, Query, Request, State},
    http::{
        HeaderMap, HeaderValue, Method, Response, StatusCode,
        header::{ACCEPT, ALLOW, LOCATION, RETRY_AFTER, SET_COOKIE, WWW_AUTHENTICATE},
    },
    middleware::{self, Next},
    response::{
        IntoResponse as _,
        sse::{KeepAlive, Sse},
    },
    routing::{get, post},
};
use gpufleet_compliance::{Catalogue, Verdict};
use gpufleet_history::{Store, StoreError};
use gpufleet_language::visible::json_line;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{sync::watch, task::spawn_blocking};

use crate::{
    access::{Access, Refused},
    error::ServeError,
    fleet_cache::{Fleet, FleetCache},
    live::{Hub, Unwatched},
    pages::{ICON, Pages, SCRIPT, STYLE},
    reply::{Kind, Reply, secure},
    runs::{RunLine, RunStanding, Runs, RunsError},
    view::{Asked, CheckView, FleetView, Moment, NodeView, Order, address, check_lines},
};

/// How long an answer may take to begin.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a login form.
const FORM: usize = 4096;
/// Bytes of the name of a node or a check, and of an id.
const LONGEST_NAME: usize = 512;
/// Runs of one page.
const RUNS: usize = 100;
/// A wrong token costs this much time.
const PENALTY: Duration = Duration::from_millis(500);

/// Everything that answers need.
pub struct Site {
    history: Store,
    runs: Arc<dyn Runs>,
    access: Access,
    pages: Pages,
    fleet: FleetCache,
    hub: Hub,
    stop: watch::Sender<bool>,
}

impl Site {
    /// # Errors
    /// A template of the pages is wrong.
    pub fn new(history: Store, runs: Arc<dyn Runs>, access: Access) -> Result<Self, ServeError> {
        Ok(Self {
            history,
            hub: Hub::new(Arc::clone(&runs)),
            runs,
            pages: Pages::new(access.has_token())?,
            access,
            fleet: FleetCache::default(),
            stop: watch::channel(false).0,
        })
    }

    /// Ends all answers that go on.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Returns what answers requests.
    pub(crate) fn router(self: &Arc<Self>) -> Router {
        let inside = Router::new()
            .route("/", get(fleet))
            .route("/nodes/{name}", get(node))
            .route("/checks", get(checks))
            .route("/checks/{id}", get(check))
            .route("/runs", get(runs))
            .route("/runs/{id}", get(run))
            .route("/runs/{id}/events", get(events))
            .route("/api/v1/fleet", get(api_fleet))
            .route("/api/v1/nodes", get(api_nodes))
            .route("/api/v1/nodes/{name}", get(api_node))
            .route("/api/v1/findings", get(api_findings))
            .route("/api/v1/audits", get(api_audits))
            .route("/api/v1/checks", get(api_checks))
            .route("/api/v1/checks/{id}", get(api_check))
            .route("/api/v1/runs", get(api_runs))
            .route("/api/v1/runs/{id}", get(api_run))
            .fallback(nowhere)
            .layer(middleware::from_fn_with_state(Arc::clone(self), guard));
        Router::new()
            .route("/login", get(login).post(enter).layer(DefaultBodyLimit::max(FORM)))
            .route("/logout", post(leave))
            .route("/healthz", get(health))
            .route("/assets/serve.css", get(style))
            .route("/assets/serve.js", get(script))
            .route("/assets/icon.svg", get(icon))
            .merge(inside)
            .layer(middleware::from_fn_with_state(Arc::clone(self), around))
            .with_state(Arc::clone(self))
    }

    fn html(
        &self,
        request: &HeaderMap,
        status: StatusCode,
        name: &str,
        here: &str,
        view: &impl Serialize,
    ) -> Response<Body> {
        match self.pages.render(name, here, view) {
            Ok(page) => Reply::new(status, Kind::Html, page).answer(request),
            Err(error) => self.unrendered(request, name, &error),
        }
    }

    fn unrendered(&self, request: &HeaderMap, page: &str, error: &minijinja::Error) -> Response<Body> {
        tracing::error!(%error, page, "cannot render");
        let text = "cannot render the page\n".to_owned();
        Reply::new(StatusCode::INTERNAL_SERVER_ERROR, Kind::Text, text).answer(request)
    }

    /// Returns a short message as a page, or as JSON below `/api`.
    fn message(&self, request: &HeaderMap, status: StatusCode, title: &str, text: &str) -> Response<Body> {
        let view = json!({"status": status.as_u16(), "title": title, "text": text});
        if wants_html(request) {
            return self.html(request, status, "message.html", "", &view);
        }
        Reply::new(status, Kind::Json, format!("{}\n", json!({"error": title, "help": text}))).answer(request)
    }

    fn not_found(&self, request: &HeaderMap, what: &str) -> Response<Body> {
        self.message(
            request,
            StatusCode::NOT_FOUND,
            what,
            "The address may be mistyped, or the history does not go back that far.",
        )
    }

    fn failed(&self, request: &HeaderMap, failure: &StoreError) -> Response<Body> {
        tracing::error!(error = %failure, "cannot read the history");
        self.message(
            request,
            StatusCode::SERVICE_UNAVAILABLE,
            "The history cannot be read",
            "The log of gpufleet serve says why. It is tried again with every request.",
        )
    }

    fn runs_failed(&self, request: &HeaderMap, id: &str, error: &RunsError) -> Response<Body> {
        match error {
            RunsError::NoSuchRun => self.not_found(request, "No such run on this machine"),
            RunsError::Unreadable(cause) => {
                tracing::warn!(run = id, %cause, "cannot read a run");
                self.message(
                    request,
                    StatusCode::SERVICE_UNAVAILABLE,
                    "The record of this run cannot be read",
                    "`gpufleet report` with its id says why.",
                )
            }
        }
    }

    async fn fleet(&self) -> Result<Arc<Fleet>, StoreError> {
        self.fleet.get(&self.history).await
    }

    /// Asks about runs on a thread that may wait for files.
    async fn about_runs<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Runs) -> Result<T, RunsError> + Send + 'static,
    ) -> Result<T, RunsError> {
        let runs = Arc::clone(&self.runs);
        match spawn_blocking(move || ask(&*runs)).await {
            Ok(answer) => answer,
            Err(error) => Err(RunsError::Unreadable(Box::new(error))),
        }
    }
}

type Here = State<Arc<Site>>;

fn wants_html(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT).iter().any(|value| value.to_str().is_ok_and(|value| value.contains("text/html")))
}

/// What every request passes: its method, its time, the log, and the headers of its answer.
async fn around(State(site): Here, request: Request, next: Next) -> Response<Body> {
    let begin = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let forms = [&Method::GET, &Method::HEAD, &Method::POST];
    let may_post = matches!(path.as_str(), "/login" | "/logout");
    let allowed = forms.contains(&&method) && (method != Method::POST || may_post);
    let mut response = if allowed {
        match tokio::time::timeout(PATIENCE, next.run(request)).await {
            Ok(response) => response,
            Err(_) => {
                let text = "This took too long. Try again in a minute.\n".to_owned();
                Reply::new(StatusCode::SERVICE_UNAVAILABLE, Kind::Text, text).answer(&HeaderMap::new())
            }
        }
    } else {
        let text = "gpufleet serve only reads: GET and HEAD.\n".to_owned();
        let mut response =
            Reply::new(StatusCode::METHOD_NOT_ALLOWED, Kind::Text, text).answer(&HeaderMap::new());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        response
    };
    secure(&mut response, site.access.tls);
    // Why without the query and the headers: a token has no place in a log. Why quoted: a path is the sender's text.
    tracing::info!(
        target: "gpufleet_serve::access",
        %method, ?path, status = response.status().as_u16(), ms = begin.elapsed().as_millis(),
    );
    response
}

/// Lets only those in who may read.
async fn guard(State(site): Here, request: Request, next: Next) -> Response<Body> {
    match site.access.judge(request.headers(), SystemTime::now()) {
        Ok(()) => next.run(request).await,
        Err(Refused::Host) => {
            let text = "This server answers to localhost and 127.0.0.1 only. For other names it needs --token-file.\n";
            Reply::new(StatusCode::MISDIRECTED_REQUEST, Kind::Text, text.to_owned()).answer(&HeaderMap::new())
        }
        Err(Refused::Unknown) => {
            let wanted = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
            let mut response = if wants_html(request.headers()) {
                site.html(
                    request.headers(),
                    StatusCode::UNAUTHORIZED,
                    "login.html",
                    "",
                    &json!({"next": wanted, "wrong": false}),
                )
            } else {
                let help = "send the header `Authorization: Bearer TOKEN`, or log in at /login";
                let body = format!("{}\n", json!({"error": "no token", "help": help}));
                Reply::new(StatusCode::UNAUTHORIZED, Kind::Json, body).answer(request.headers())
            };
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
    }
}

async fn nowhere(State(site): Here, headers: HeaderMap) -> Response<Body> {
    site.not_found(&headers, "There is nothing here")
}

async fn style(headers: HeaderMap) -> Response<Body> {
    Reply::ok(Kind::Style, STYLE.to_owned()).answer(&headers)
}

async fn script(headers: HeaderMap) -> Response<Body> {
    Reply::ok(Kind::Script, SCRIPT.to_owned()).answer(&headers)
}

async fn icon(headers: HeaderMap) -> Response<Body> {
    Reply::ok(Kind::Icon, ICON.to_owned()).answer(&headers)
}

/// For load balancers and units: says nothing of the fleet, and asks for no token.
async fn health(State(site): Here, headers: HeaderMap) -> Response<Body> {
    match site.history.audits(Some(Timestamp::now())).await {
        Ok(_) => Reply::ok(Kind::Text, "ok\n".to_owned()).answer(&headers),
        Err(error) => {
            tracing::error!(%error, "cannot read the history");
            let text = "the history cannot be read\n".to_owned();
            Reply::new(StatusCode::SERVICE_UNAVAILABLE, Kind::Text, text).answer(&headers)
        }
    }
}

#[derive(Debug, Deserialize)]
struct LoginForm {
    token: String,
    #[serde(default)]
    next: String,
}

async fn login(State(site): Here, headers: HeaderMap) -> Response<Body> {
    if !site.access.has_token() {
        return redirect("/", None);
    }
    site.html(&headers, StatusCode::OK, "login.html", "", &json!({"next": "/", "wrong": false}))
}

async fn enter(State(site): Here, headers: HeaderMap, Form(form): Form<LoginForm>) -> Response<Body> {
    if is_foreign(&headers) {
        return site.message(
            &headers,
            StatusCode::FORBIDDEN,
            "Another site sent this form",
            "Log in at /login.",
        );
    }
    if site.access.is_token(&form.token) {
        return redirect(inside(&form.next), Some(site.access.login_cookie(&headers, SystemTime::now())));
    }
    tokio::time::sleep(PENALTY).await;
    tracing::warn!("a login with a wrong token");
    let view = json!({"next": inside(&form.next), "wrong": true});
    site.html(&headers, StatusCode::UNAUTHORIZED, "login.html", "", &view)
}

async fn leave(State(site): Here, headers: HeaderMap) -> Response<Body> {
    if is_foreign(&headers) {
        return site.message(&headers, StatusCode::FORBIDDEN, "Another site sent this form", "Log out here.");
    }
    redirect("/login", Some(site.access.logout_cookie(&headers)))
}

/// Whether a browser says that a page of another site sent this.
fn is_foreign(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none")
}

/// Returns an address of this site: no other site can be named in it.
fn inside(next: &str) -> &str {
    let plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    let here = next.starts_with('/') && !next.starts_with("//") && plain && next.len() <= 2048;
    if here { next } else { "/" }
}

fn redirect(to: &str, cookie: Option<String>) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    headers.insert(LOCATION, HeaderValue::from_str(to).unwrap_or(HeaderValue::from_static("/")));
    if let Some(cookie) = cookie.and_then(|cookie| HeaderValue::from_str(&cookie).ok()) {
        headers.insert(SET_COOKIE, cookie);
    }
    response
}

#[derive(Debug, Deserialize)]
struct FleetQuery {
    by: Option<String>,
    group: Option<String>,
    row: Option<String>,
    verdict: Option<String>,
    find: Option<String>,
    sort: Option<String>,
}

async fn fleet(State(site): Here, headers: HeaderMap, Query(query): Query<FleetQuery>) -> Response<Body> {
    let fleet = match site.fleet().await {
        Ok(fleet) => fleet,
        Err(error) => return site.failed(&headers, &error),
    };
    let verdict = query.verdict.as_deref().and_then(Verdict::of_word);
    let find = query.find.map(|find| find.trim().to_owned()).filter(|find| !find.is_empty());
    if let Some(found) = find.as_ref().and_then(|find| fleet.nodes.iter().find(|node| node.node == *find)) {
        return redirect(&address("nodes", &found.node), None);
    }
    let order = query.sort.as_deref().and_then(Order::of_word).unwrap_or_default();
    let (by, group, row) = (query.by, query.group, query.row);
    let asked = Asked { by, group, row, verdict, find, order };
    if let Some(page) = fleet.page(&asked) {
        return Reply::ok(Kind::Html, page.to_string()).answer(&headers);
    }
    let page = spawn_blocking(move || {
        let view = FleetView::of(&fleet.counted, &fleet.nodes, &fleet.findings, &asked, Timestamp::now())
            .beside(&fleet.trials);
        match site.pages.render("fleet.html", "fleet", &view) {
            Ok(page) => {
                fleet.keep(asked, Arc::from(page.as_str()));
                Reply::ok(Kind::Html, page).answer(&headers)
            }
            Err(error) => site.unrendered(&headers, "fleet.html", &error),
        }
    });
    page.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

async fn node(State(site): Here, headers: HeaderMap, Path(name): Path<String>) -> Response<Body> {
    if name.len() > LONGEST_NAME {
        return site.not_found(&headers, "No such node");
    }
    match site.history.node(&name).await {
        Ok(Some(history)) => {
            site.html(&headers, StatusCode::OK, "node.html", "fleet", &NodeView::of(history.with_open()))
        }
        Ok(None) => site.not_found(&headers, "No audit knows this node"),
        Err(error) => site.failed(&headers, &error),
    }
}

async fn checks(State(site): Here, headers: HeaderMap) -> Response<Body> {
    match site.fleet().await {
        Ok(fleet) => {
            site.html(&headers, StatusCode::OK, "checks.html", "checks", &check_lines(&fleet.findings))
        }
        Err(error) => site.failed(&headers, &error),
    }
}

async fn check(State(site): Here, headers: HeaderMap, Path(id): Path<String>) -> Response<Body> {
    if id.len() > LONGEST_NAME {
        return site.not_found(&headers, "No such check");
    }
    match site.history.control(&id).await {
        Ok(history) => match CheckView::of(&id, history) {
            Some(view) => site.html(&headers, StatusCode::OK, "check.html", "checks", &view),
            None => site.not_found(&headers, "No such check"),
        },
        Err(error) => site.failed(&headers, &error),
    }
}

#[derive(Debug, Deserialize)]
struct RunsQuery {
    before: Option<String>,
}

async fn runs(State(site): Here, headers: HeaderMap, Query(query): Query<RunsQuery>) -> Response<Body> {
    let lines = site.about_runs(move |runs| Ok(runs.list(query.before.as_deref(), RUNS))).await;
    let lines = match lines {
        Ok(lines) => lines,
        Err(error) => return site.runs_failed(&headers, "", &error),
    };
    // The end of an id is enough for every command.
    let short = |id: &str| id.get(id.len().saturating_sub(8)..).unwrap_or(id).to_owned();
    let line = |run: &RunLine| json!({"run": run, "href": address("runs", &run.id), "started": Moment::from(run.started), "short": short(&run.id)});
    let more = (lines.len() == RUNS).then(|| lines.last().map(|run| run.id.clone())).flatten();
    let view = json!({"runs": lines.iter().map(line).collect::<Vec<_>>(), "more": more});
    site.html(&headers, StatusCode::OK, "runs.html", "runs", &view)
}

async fn run(State(site): Here, headers: HeaderMap, Path(id): Path<String>) -> Response<Body> {
    let asked = id.clone();
    let line = match site.about_runs(move |runs| runs.line(&asked)).await {
        Ok(line) => line,
        Err(error) => return site.runs_failed(&headers, &id, &error),
    };
    if line.standing == RunStanding::Running {
        match site.hub.watch(&line.id).await {
            Ok(watcher) => {
                if let Some(now) = watcher.now().filter(|now| !now.is_over()) {
                    let view = json!({
                        "run": now.run, "started": Moment::from(now.run.run.started), "events": format!("{}/events", address("runs", &line.id)),
                    });
                    return site.html(&headers, StatusCode::OK, "live.html", "runs", &view);
                }
            }
            // The report is as good, but does not change by itself.
            Err(Unwatched::Full) => {}
            Err(Unwatched::Runs(error)) => return site.runs_failed(&headers, &id, &error),
        }
    }
    let asked = id.clone();
    let page = site.about_runs(move |runs| runs.report(&asked)).await;
    match page.as_deref().map(framed) {
        Ok(Some((page, policy))) => Reply::ok(Kind::Html, page).with_policy(policy).answer(&headers),
        Ok(None) => {
            tracing::error!(run = id, "the report has no content security policy");
            site.message(
                &headers,
                StatusCode::INTERNAL_SERVER_ERROR,
                "The report cannot be shown safely",
                "`gpufleet report` writes it to a file.",
            )
        }
        Err(error) => site.runs_failed(&headers, &id, error),
    }
}

/// Returns a report with a way back, and its policy. `None` where it has no policy: it is not shown without one.
fn framed(report: &str) -> Option<(String, String)> {
    const META: &str = "<meta http-equiv=\"Content-Security-Policy\" content=\"";
    const BODY: &str = "<body>";
    let (_, rest) = report.split_once(META)?;
    let (policy, _) = rest.split_once('"')?;
    let (head, body) = report.split_once(BODY)?;
    let back = "<p class=\"meta\"><a href=\"/\">Fleet</a> · <a href=\"/checks\">Checks</a> · <a href=\"/runs\">Runs</a></p>";
    let body = match body.strip_prefix("<main>") {
        Some(rest) => format!("{head}{BODY}<main>{back}{rest}"),
        None => format!("{head}{BODY}{back}{body}"),
    };
    Some((body, format!("{policy}; frame-ancestors 'none'")))
}

async fn events(State(site): Here, headers: HeaderMap, Path(id): Path<String>) -> Response<Body> {
    let asked = id.clone();
    let line = match site.about_runs(move |runs| runs.line(&asked)).await {
        Ok(line) => line,
        Err(error) => return site.runs_failed(&headers, &id, &error),
    };
    match site.hub.watch(&line.id).await {
        Ok(watcher) => {
            let events = watcher.events(site.stop.subscribe());
            Sse::new(events).keep_alive(KeepAlive::default()).into_response()
        }
        Err(Unwatched::Full) => {
            let mut response = site.message(
                &headers,
                StatusCode::SERVICE_UNAVAILABLE,
                "Too many watch runs now",
                "Load the page again in a minute.",
            );
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("60"));
            response
        }
        Err(Unwatched::Runs(error)) => site.runs_failed(&headers, &id, &error),
    }
}

fn json_reply(headers: &HeaderMap, value: &impl Serialize) -> Response<Body> {
    match json_line(value) {
        Ok(text) => Reply::ok(Kind::Json, text).answer(headers),
        Err(error) => {
            tracing::error!(%error, "cannot write JSON");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn api_fleet(State(site): Here, headers: HeaderMap) -> Response<Body> {
    match site.fleet().await {
        Ok(fleet) => {
            let count =
                |verdict: &Verdict| fleet.nodes.iter().filter(|node| node.verdict == *verdict).count();
            let verdicts: Vec<_> =
                Verdict::WORST_FIRST.iter().map(|one| (one.word().to_owned(), json!(count(one)))).collect();
            json_reply(
                &headers,
                &json!({
                    "nodes": fleet.nodes.len(),
                    "compliant": fleet.nodes.iter().filter(|node| node.compliant).count(),
                    "verdicts": serde_json::Map::from_iter(verdicts),
                    "newest_audit": fleet.counted.first(),
                }),
            )
        }
        Err(error) => site.failed(&headers, &error),
    }
}

async fn api_nodes(State(site): Here, headers: HeaderMap) -> Response<Body> {
    match site.fleet().await {
        Ok(fleet) => json_reply(&headers, &fleet.nodes),
        Err(error) => site.failed(&headers, &error),
    }
}

async fn api_node(State(site): Here, headers: HeaderMap, Path(name): Path<String>) -> Response<Body> {
    match site.history.node(&name).await {
        Ok(Some(node)) => json_reply(&headers, &node.with_open()),
        Ok(None) => site.not_found(&headers, "No audit knows this node"),
        Err(error) => site.failed(&headers, &error),
    }
}

async fn api_findings(State(site): Here, headers: HeaderMap) -> Response<Body> {
    match site.fleet().await {
        Ok(fleet) => json_reply(&headers, &fleet.findings),
        Err(error) => site.failed(&headers, &error),
    }
}

async fn api_audits(State(site): Here, headers: HeaderMap) -> Response<Body> {
    match site.fleet().await {
        Ok(fleet) => json_reply(&headers, &fleet.audits),
        Err(error) => site.failed(&headers, &error),
    }
}

async fn api_checks(State(site): Here, headers: HeaderMap) -> Response<Body> {
    match site.fleet().await {
        Ok(fleet) => {
            let lines: Vec<_> =
                check_lines(&fleet.findings).into_iter().flat_map(|(_, lines)| lines).collect();
            json_reply(&headers, &lines)
        }
        Err(error) => site.failed(&headers, &error),
    }
}

async fn api_check(State(site): Here, headers: HeaderMap, Path(id): Path<String>) -> Response<Body> {
    match site.history.control(&id).await {
        Ok(Some(control)) => json_reply(&headers, &control),
        Ok(None) if Catalogue::get().check(&id).is_some() => {
            json_reply(&headers, &json!({"control": id, "open": [], "trend": []}))
        }
        Ok(None) => site.not_found(&headers, "No such check"),
        Err(error) => site.failed(&headers, &error),
    }
}

async fn api_runs(State(site): Here, headers: HeaderMap, Query(query): Query<RunsQuery>) -> Response<Body> {
    match site.about_runs(move |runs| Ok(runs.list(query.before.as_deref(), RUNS))).await {
        Ok(lines) => json_reply(&headers, &lines),
        Err(error) => site.runs_failed(&headers, "", &error),
    }
}

async fn api_run(State(site): Here, headers: HeaderMap, Path(id): Path<String>) -> Response<Body> {
    let asked = id.clone();
    match site.about_runs(move |runs| runs.line(&asked)).await {
        Ok(line) => json_reply(&headers, &line),
        Err(error) => site.runs_failed(&headers, &id, &error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_to_this_site_only() {
        for good in ["/", "/nodes/gpu1?x=%2F", "/?by=group"] {
            assert_eq!(inside(good), good);
        }
        for bad in ["//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nX: y", "", "/ä"] {
            assert_eq!(inside(bad), "/", "{bad}");
        }
    }

    #[test]
    fn a_report_keeps_its_own_policy() {
        let report = "<html><head><meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'\">\
                      </head><body><main>text <body></main></body>";
        let (page, policy) = framed(report).unwrap();
        assert_eq!(policy, "default-src 'none'; frame-ancestors 'none'");
        assert!(page.contains("<body><main><p class=\"meta\"><a href=\"/\">Fleet</a>"), "{page}");
        assert_eq!(page.matches("href=\"/runs\"").count(), 1);
        assert!(framed("<body>").is_none());
    }
}
