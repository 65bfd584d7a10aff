//! The way to an API server through `kubectl`, on this machine or on a login node.
//!
//! Owns how a request becomes a call of `kubectl` and how what that prints becomes a reply. Must not know what is asked, nor
//! where programs run. Invariants: every call runs under `timeout`; what says neither yes nor no is unanswered, never a "no".
//!
//! What `kubectl` hides: with `-v=8` it writes the server's whole answer to its standard error, where the name and the
//! numbers of a disruption budget are; else it shows the message alone. It asks again by itself, in silence, where the server
//! says when (`Retry-After`), up to the timeout.
//!
//! Source: `checkErr` and `StandardErrorMessage` of kubectl's cmd/util/helpers.go; seen with kubectl 1.20.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use serde_json::{Value, json};

use super::super::{Call, Output, RunError, Runner};
use super::api::{Api, Method, Reply, Request, Unanswered};

/// What `timeout` exits with when it stopped the program: by TERM, and by KILL.
const STOPPED: [i32; 2] = [124, 137];
/// How much longer than `timeout` the call itself is waited for.
const SLACK: Duration = Duration::from_secs(5);
/// The first word is the kubeconfig, or empty; the others are for `kubectl`.
///
/// Why the kubeconfig is looked for: kubectl takes one that is not there for none, and asks a server on its own machine.
///
/// Why `exit 1`: an old kubectl that is told to be talkative exits with 255, which over SSH means that SSH failed.
const SCRIPT: &str = r#"case $1 in '~/'*) file=$HOME/${1#'~/'} ;; *) file=$1 ;; esac
if [ -n "$file" ]; then
    [ -r "$file" ] || { echo "there is no kubeconfig $file" >&2; exit 1; }
    export KUBECONFIG="$file"
fi
shift
LC_ALL=C kubectl "$@" || exit 1"#;
/// How a server's answer begins where `kubectl` writes it out.
const STATUS: &str = "{\"kind\":\"Status\"";

/// Asks through `kubectl`.
pub struct KubectlApi {
    runner: Arc<dyn Runner>,
    kubeconfig: String,
    context: Option<String>,
}

impl KubectlApi {
    /// The kubeconfig is a path where `kubectl` runs; without one it finds its own.
    pub fn new(runner: Arc<dyn Runner>, kubeconfig: Option<String>, context: Option<String>) -> Self {
        Self { runner, kubeconfig: kubeconfig.unwrap_or_default(), context }
    }

    fn call(&self, request: &Request) -> Result<Call, Unanswered> {
        let seconds = request.timeout.as_secs().max(1).to_string();
        let mut words: Vec<&str> =
            vec!["timeout", "-k", "2", &seconds, "sh", "-c", SCRIPT, "kubectl", &self.kubeconfig];
        if let Some(context) = &self.context {
            words.extend(["--context", context]);
        }
        let mut stdin = Vec::new();
        let patch;
        match request.method {
            Method::Get => words.extend(["get", "--raw", &request.path]),
            Method::Post => {
                words.extend(["-v=8", "create", "--raw", &request.path, "-f", "-"]);
                stdin = request.body.as_ref().map(Value::to_string).unwrap_or_default().into_bytes();
            }
            // Why not raw: `replace --raw` of kubectl 1.20 posts.
            Method::Put => {
                words.extend(["-v=8", "replace", "-f", "-", "-o", "json", "--validate=false"]);
                words.push("--field-manager=gpufleet");
                stdin = request.body.as_ref().map(Value::to_string).unwrap_or_default().into_bytes();
            }
            Method::Patch => {
                let path = request.path.split('?').next().unwrap_or_default();
                let pod = || path.strip_prefix("/api/v1/namespaces/")?.split_once("/pods/");
                let object = match (path.strip_prefix("/api/v1/nodes/"), pod()) {
                    (Some(node), _) => vec!["node", node],
                    (None, Some((namespace, pod))) => vec!["pod", pod, "-n", namespace],
                    (None, None) => {
                        return Err(Unanswered(format!("kubectl is not used to patch {path}")));
                    }
                };
                patch = request.body.as_ref().map(Value::to_string).unwrap_or_default();
                // Why not from its input: sshd's is a socket, which no path opens.
                words.push("patch");
                words.extend(object);
                words.extend(["--type=json", "-o", "json", "-p", &patch]);
                words.push("--field-manager=gpufleet");
            }
        }
        let mut call = Call::new(words, request.timeout + SLACK);
        call.stdin = stdin;
        Ok(call)
    }
}

impl Api for KubectlApi {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Reply, Unanswered>> {
        async move {
            let output = self.runner.run(self.call(&request)?).await;
            let output = output.map_err(|error| match error {
                RunError::NotStarted(why) => Unanswered(format!("`kubectl` cannot be started: {why}")),
                error => Unanswered(format!("`kubectl` {error}")),
            })?;
            read(&output, &request)
        }
        .boxed()
    }

    fn place(&self) -> String {
        match (self.runner.place(), &self.context) {
            (place, Some(context)) => format!(" (context {context}) by kubectl{place}"),
            (place, None) => format!(" by kubectl{place}"),
        }
    }
}

fn read(output: &Output, request: &Request) -> Result<Reply, Unanswered> {
    if output.status == Some(0) {
        let status = if request.method == Method::Post { 201 } else { 200 };
        return Ok(Reply { status, retry_after: None, body: output.stdout.clone() });
    }
    let said = String::from_utf8_lossy(&output.stderr);
    // Why also where it was stopped: it was asking again what the server had refused.
    if let Some(reply) = written_out(&said) {
        return Ok(reply);
    }
    if output.status.is_some_and(|status| STOPPED.contains(&status)) {
        return Err(Unanswered(format!("no answer within {} s", request.timeout.as_secs())));
    }
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    match lines().rev().find_map(told) {
        Some((status, reason, message)) => {
            let cause = |reason: &str, message: &str| json!({"reason": reason, "message": message});
            let causes = if message.contains("disruption budget") {
                vec![cause("DisruptionBudget", "of its namespace has no room (`kubectl get pdb` shows them)")]
            } else if message.contains("because it is being terminated") {
                vec![cause("NamespaceTerminating", message)]
            } else {
                Vec::new()
            };
            let body = json!({"kind": "Status", "reason": reason, "message": message, "details": {"causes": causes}});
            Ok(Reply { status, retry_after: None, body: body.to_string().into_bytes() })
        }
        None => Err(Unanswered(match (lines().next_back(), output.status) {
            (Some(line), _) => format!("`kubectl` says: {}", line.chars().take(300).collect::<String>()),
            (None, Some(status)) => format!("`kubectl` ended with status {status} and no word"),
            (None, None) => "`kubectl` was ended by a signal".to_owned(),
        })),
    }
}

/// The last answer of the server that is written out in what `kubectl` says.
fn written_out(said: &str) -> Option<Reply> {
    let begin = said.rfind(STATUS)?;
    let status: Value = serde_json::Deserializer::from_str(said.get(begin..)?).into_iter().next()?.ok()?;
    let code =
        status.get("code")?.as_u64().and_then(|code| u16::try_from(code).ok()).filter(|code| *code >= 400)?;
    Some(Reply { status: code, retry_after: None, body: status.to_string().into_bytes() })
}

/// The status, the reason and the message of a line that tells a server's refusal.
fn told(line: &str) -> Option<(u16, &str, &str)> {
    if let Some(rest) = line.strip_prefix("Error from server (") {
        let (reason, message) = rest.split_once("): ")?;
        return Some((code(reason), reason, message));
    }
    if let Some(message) = line.strip_prefix("Error from server: ") {
        return Some((500, "", message));
    }
    if line.starts_with("error: You must be logged in to the server") {
        return Some((401, "Unauthorized", "the server does not know who kubectl is"));
    }
    let invalid = line.starts_with("The request is invalid")
        || line.starts_with("The ") && line.contains(" is invalid");
    invalid.then_some((422, "Invalid", line))
}

/// The status that goes with a reason. Source: `StatusReason` of apimachinery's meta/v1/types.go.
fn code(reason: &str) -> u16 {
    match reason {
        "BadRequest" => 400,
        "Unauthorized" => 401,
        "Forbidden" => 403,
        "NotFound" => 404,
        "MethodNotAllowed" => 405,
        "NotAcceptable" => 406,
        "AlreadyExists" | "Conflict" => 409,
        "Gone" | "Expired" => 410,
        "RequestEntityTooLarge" => 413,
        "UnsupportedMediaType" => 415,
        "Invalid" => 422,
        "TooManyRequests" => 429,
        "ServiceUnavailable" => 503,
        "Timeout" => 504,
        _ => 500,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::eviction::{self, Evicted};
    use super::*;

    /// Answers every call alike, and keeps the calls.
    struct Script {
        output: Result<Output, RunError>,
        calls: Mutex<Vec<Call>>,
    }

    impl Runner for Script {
        fn place(&self) -> String {
            " on login1".to_owned()
        }

        fn run(&self, call: Call) -> BoxFuture<'_, Result<Output, RunError>> {
            self.calls.lock().unwrap().push(call);
            futures::future::ready(self.output.clone()).boxed()
        }
    }

    async fn asked(request: Request, output: Result<Output, RunError>) -> (Result<Reply, Unanswered>, Call) {
        let script = Arc::new(Script { output, calls: Mutex::default() });
        let api = KubectlApi::new(Arc::clone(&script) as Arc<dyn Runner>, Some("~/.kube/prod".into()), None);
        assert_eq!(api.place(), " by kubectl on login1");
        let reply = api.send(request).await;
        let call = script.calls.lock().unwrap().remove(0);
        (reply, call)
    }

    fn failed(stderr: &str) -> Result<Output, RunError> {
        Ok(Output { status: Some(1), stdout: Vec::new(), stderr: stderr.as_bytes().to_vec() })
    }

    fn post() -> Request {
        Request::post("/api/v1/namespaces/a/pods/b/eviction?x=y", json!({"kind": "Eviction"}))
    }

    #[tokio::test]
    async fn each_method_has_its_call() {
        let yes = || Ok(Output { status: Some(0), stdout: b"{}".to_vec(), stderr: Vec::new() });
        let words = |call: &Call| call.argv.get(9..).unwrap_or_default().join(" ");
        let (reply, call) = asked(Request::get("/api/v1/nodes?limit=500"), yes()).await;
        assert_eq!(reply, Ok(Reply { status: 200, retry_after: None, body: b"{}".to_vec() }));
        assert_eq!(call.argv.get(..6).unwrap(), ["timeout", "-k", "2", "20", "sh", "-c"]);
        assert_eq!(call.argv.get(7..9).unwrap(), ["kubectl", "~/.kube/prod"]);
        assert_eq!(words(&call), "get --raw /api/v1/nodes?limit=500");
        let (reply, call) = asked(post(), yes()).await;
        assert_eq!(reply.unwrap().status, 201);
        assert_eq!(words(&call), "-v=8 create --raw /api/v1/namespaces/a/pods/b/eviction?x=y -f -");
        assert_eq!(call.stdin, br#"{"kind":"Eviction"}"#);
        let (_, call) = asked(Request::put("/apis/x", json!({})), yes()).await;
        assert_eq!(words(&call), "-v=8 replace -f - -o json --validate=false --field-manager=gpufleet");
        let patch = Request::patch("/api/v1/nodes/n1?fieldManager=gpufleet", vec![json!({"op": "test"})]);
        let (_, call) = asked(patch, yes()).await;
        assert_eq!(
            words(&call),
            r#"patch node n1 --type=json -o json -p [{"op":"test"}] --field-manager=gpufleet"#
        );
        let patch = Request::patch("/api/v1/namespaces/a/pods/b?fieldManager=gpufleet", Vec::new());
        let (_, call) = asked(patch, yes()).await;
        assert_eq!(words(&call), "patch pod b -n a --type=json -o json -p [] --field-manager=gpufleet");
    }

    /// What kubectl 1.20 printed; the body as newer ones write it out, too.
    #[tokio::test]
    async fn a_server_that_says_no() {
        let body = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"Cannot evict pod as it would violate the pod's disruption budget.","reason":"TooManyRequests","details":{"causes":[{"reason":"DisruptionBudget","message":"The disruption budget web needs 2 healthy pods and has 2 currently"}]},"code":429}"#;
        let named = Evicted::Budget {
            says: "PodDisruptionBudget web needs 2 healthy pods and has 2 currently".into(),
            again: None,
        };
        for talk in [
            format!(
                "I1122 09:36:40 request.go:1107] Request Body: {{\"kind\":\"Eviction\"}}\nI1122 request.go:1107] Response Body: {body}\nF1122 helpers.go:115] Error from server (TooManyRequests): Cannot evict\ngoroutine 1 [running]:\n"
            ),
            format!(
                "I0101 \"Response Body\" body=<\n\t{body}\n >\nError from server (TooManyRequests): Cannot evict pod\n"
            ),
        ] {
            assert_eq!(eviction::read(&asked(post(), failed(&talk)).await.0.unwrap()), named);
        }
        let bare = "Error from server (TooManyRequests): Cannot evict pod as it would violate the pod's disruption budget.\n";
        let Evicted::Budget { says, .. } = eviction::read(&asked(post(), failed(bare)).await.0.unwrap())
        else {
            panic!()
        };
        assert_eq!(says, "PodDisruptionBudget of its namespace has no room (`kubectl get pdb` shows them)");
        for (line, status) in [
            ("Error from server (NotFound): nodes \"n9\" not found", 404),
            ("The request is invalid", 422),
            ("The Node \"n1\" is invalid: spec: nope", 422),
            ("Error from server (Conflict): Operation cannot be fulfilled on leases", 409),
            ("Error from server (AlreadyExists): leases \"gpufleet\" already exists", 409),
            ("Error from server: etcdserver: request timed out", 500),
            ("error: You must be logged in to the server (Unauthorized)", 401),
            ("Error from server (Forbidden): nodes \"n1\" is forbidden: User \"x\" cannot patch", 403),
        ] {
            let (reply, _) = asked(Request::get("/x"), failed(&format!("Warning: old\n{line}\n"))).await;
            assert_eq!(reply.unwrap().status, status, "{line}");
        }
    }

    #[tokio::test]
    async fn the_script_finds_its_kubeconfig_or_says_so() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("config"), "").unwrap();
        let bin = home.path().join("kubectl");
        std::fs::write(&bin, "#!/bin/sh\necho \"$KUBECONFIG $*\"\nexit 255\n").unwrap();
        std::fs::set_permissions(&bin, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let place = home.path().display().to_string();
        let said = async |file: &str| {
            let mut call =
                Call::new(["sh", "-c", SCRIPT, "kubectl", file, "get", "a b"], Duration::from_secs(10));
            call.env =
                vec![("HOME".into(), place.clone()), ("PATH".into(), format!("{place}:/usr/bin:/bin"))];
            let output = super::super::super::LocalRunner.run(call).await.unwrap();
            assert_eq!(output.status, Some(1));
            String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
        };
        assert_eq!(said("~/config").await, format!("{place}/config get a b\n"));
        assert_eq!(said(&format!("{place}/config")).await, format!("{place}/config get a b\n"));
        assert_eq!(said("").await, " get a b\n");
        assert_eq!(said("~/other").await, format!("there is no kubeconfig {place}/other\n"));
    }

    #[tokio::test]
    async fn what_says_neither_yes_nor_no() {
        for (output, said) in [
            (
                failed(
                    "The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?\n",
                ),
                "was refused",
            ),
            (
                failed("Unable to connect to the server: net/http: TLS handshake timeout\n"),
                "TLS handshake timeout",
            ),
            (failed("sh: 3: kubectl: not found\n"), "kubectl: not found"),
            (failed(""), "ended with status 1 and no word"),
            (
                Ok(Output { status: Some(124), stdout: Vec::new(), stderr: Vec::new() }),
                "no answer within 20 s",
            ),
            (Ok(Output { status: None, stdout: Vec::new(), stderr: Vec::new() }), "ended by a signal"),
            (Err(RunError::Lost("the connection broke".into())), "was lost: the connection broke"),
        ] {
            let (reply, _) = asked(Request::get("/x"), output).await;
            assert!(reply.as_ref().unwrap_err().0.contains(said), "{reply:?}");
        }
        // It was asking again, in silence, what had been refused.
        let talk = r#"Response Body: {"kind":"Status","reason":"TooManyRequests","message":"later","details":{"retryAfterSeconds":10,"causes":[{"reason":"DisruptionBudget","message":"The disruption budget p1 is still being processed by the server."}]},"code":429}"#;
        let stopped = Output { status: Some(124), stdout: Vec::new(), stderr: talk.as_bytes().to_vec() };
        let reply = asked(post(), Ok(stopped)).await.0.unwrap();
        let again = Some(Duration::from_secs(10));
        assert!(matches!(eviction::read(&reply), Evicted::Budget { again: asked, .. } if asked == again));
    }
}
