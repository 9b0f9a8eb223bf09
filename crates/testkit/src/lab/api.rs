//! An etcd and an API server.

use super::authority::{Authority, Identity};
use super::janitor::Janitor;
use super::process::{Place, Process};
use super::programs::{installed, tools};
use super::{PATIENCE, wait_for};
use bowline_core::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::fs;
use std::future::Future;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tonic::codegen::http::Request;

/// Whom a client or a kubeconfig acts as.
#[derive(Clone, Copy, Debug)]
pub enum Access<'a> {
    /// Somebody who may do everything.
    Admin,
    /// A user with groups; what they may do is what roles bound to them say.
    User(&'a str, &'a [&'a str]),
    /// A service account that exists, by namespace and name, with a token of its own.
    ServiceAccount(&'a str, &'a str),
}

/// A running API server with an etcd of its own.
///
/// Ready in three to four seconds on an idle machine. All methods take `&self`, so a lab may be kept in a static and shared by the
/// tests of a program, each in a namespace of its own; it is cleaned when the program ends.
pub struct ApiLab {
    pub(super) directory: PathBuf,
    pub(super) place: Place,
    pub(super) authority: Authority,
    pub(super) address: Ipv4Addr,
    audit: Option<PathBuf>,
    port: u16,
    etcd_port: u16,
    server: Mutex<Option<Process>>,
    /// From when until when it was not ready.
    starts: Mutex<Vec<[Timestamp; 2]>>,
    more: Mutex<Vec<Process>>,
    _etcd: Process,
    janitor: Janitor,
}

/// Where a lab runs.
pub(super) struct Site {
    pub(super) directory: PathBuf,
    pub(super) place: Place,
    pub(super) address: Ipv4Addr,
    /// Which requests the API server writes down; none if nothing is said.
    pub(super) audit: Option<PathBuf>,
    pub(super) janitor: Janitor,
}

impl ApiLab {
    /// Starts a lab on loopback, or says what this machine lacks.
    pub fn start() -> Option<Self> {
        if !Path::new("/proc/self/ns/pid").exists() {
            super::not_run("a Linux with /proc");
            return None;
        }
        let directory = tempfile::Builder::new().prefix("bowline-lab-").tempdir().unwrap().keep();
        let janitor = Janitor::of(&directory, None);
        let place = Place::new(&directory.join("log"));
        Some(Self::at(Site { directory, place, address: Ipv4Addr::LOCALHOST, audit: None, janitor }))
    }

    pub(super) fn at(site: Site) -> Self {
        let Site { directory, place, address, audit, janitor } = site;
        let authority = Authority::new(&directory.join("pki"));
        let names = [
            "kubernetes.default.svc",
            "kubernetes.default",
            "kubernetes",
            "localhost",
            "127.0.0.1",
            "10.96.0.1",
            &address.to_string(),
        ];
        authority.issue("server", "kube-apiserver", Some("system:masters"), &names.map(str::to_owned));
        authority.issue("admin", "admin", Some("system:masters"), &[]);
        authority.key_pair("sa");
        let (etcd, etcd_port) = start_etcd(&directory, &place);
        let lab = Self {
            directory,
            place,
            authority,
            address,
            audit,
            port: free_port(),
            etcd_port,
            server: Mutex::new(None),
            starts: Mutex::default(),
            more: Mutex::new(vec![]),
            _etcd: etcd,
            janitor,
        };
        fs::write(lab.kubeconfig(), lab.kubeconfig_text(&lab.admin_fields())).unwrap();
        lab.start_api_server();
        lab
    }

    /// The directory with everything of this lab.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where the API server listens, such as `https://127.0.0.1:6443`.
    pub fn url(&self) -> String {
        format!("https://{}:{}", self.address, self.port)
    }

    /// The certificate that signed the API server's.
    pub fn ca(&self) -> PathBuf {
        self.authority.file("ca.crt")
    }

    /// The admin's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    /// A kubeconfig for somebody, in a file that stays where it is for as long as the lab.
    pub fn kubeconfig_for(&self, whom: Access<'_>) -> PathBuf {
        let (name, fields) = match whom {
            Access::Admin => return self.kubeconfig(),
            Access::User(user, groups) => {
                let groups: Vec<String> = groups.iter().map(|group| format!("{group:?}")).collect();
                let fields =
                    format!("{}, as: {user:?}, as-groups: [{}]", self.admin_fields(), groups.join(", "));
                (format!("{user} {}", groups.join(" ")), fields)
            }
            Access::ServiceAccount(namespace, name) => {
                let token = self.kubectl(&["-n", namespace, "create", "token", name, "--duration=24h"]);
                (format!("{namespace} {name}"), format!("token: {}", token.trim()))
            }
        };
        let name: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
        let path = self.directory.join(format!("kubeconfig.{name}"));
        fs::write(&path, self.kubeconfig_text(&fields)).unwrap();
        path
    }

    fn admin_fields(&self) -> String {
        certificate_fields(&Identity {
            certificate: self.authority.file("admin.crt"),
            key: self.authority.file("admin.key"),
        })
    }

    pub(super) fn kubeconfig_text(&self, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: lab\n\
             clusters: [{{name: lab, cluster: {{server: {:?}, certificate-authority: {:?}}}}}]\n\
             users: [{{name: lab, user: {{{user}}}}}]\n\
             contexts: [{{name: lab, context: {{cluster: lab, user: lab}}}}]\n",
            self.url(),
            self.ca()
        )
    }

    /// A client that may do everything.
    pub async fn client(&self) -> kube::Client {
        client(&self.kubeconfig()).await
    }

    /// A client that acts as somebody.
    pub async fn client_as(&self, whom: Access<'_>) -> kube::Client {
        client(&self.kubeconfig_for(whom)).await
    }

    /// `kubectl` as admin: what it printed. It must succeed.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments).unwrap_or_else(|error| panic!("kubectl {}: {error}", arguments.join(" ")))
    }

    /// `kubectl` as admin: what it printed, or what it complained about.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.kubectl_command().args(arguments).output().unwrap();
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    fn kubectl_command(&self) -> Command {
        let mut command = Command::new(tools("kubernetes").join("kubectl"));
        // Its cache of what the server offers would go to the home directory.
        command.arg("--kubeconfig").arg(self.kubeconfig());
        command.arg("--cache-dir").arg(self.directory.join("kubectl"));
        command
    }

    /// Applies files or directories of manifests, server-side.
    pub fn apply(&self, files: &[&Path]) {
        let mut arguments = vec!["apply", "--server-side", "--force-conflicts"];
        for file in files {
            arguments.extend(["-f", file.to_str().unwrap()]);
        }
        self.kubectl(&arguments);
    }

    /// Applies manifests given as text.
    pub fn apply_text(&self, manifests: &str) {
        self.apply_with(&[], manifests);
    }

    /// Applies manifests that name no namespace, in this one.
    pub fn apply_text_in(&self, namespace: &str, manifests: &str) {
        self.apply_with(&["--namespace", namespace], manifests);
    }

    fn apply_with(&self, more: &[&str], manifests: &str) {
        let mut command = self.kubectl_command();
        command.args(["apply", "--server-side", "--force-conflicts", "-f", "-"]).args(more);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(manifests.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "kubectl apply: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Applies the definitions of VolumeSnapshot and its relatives.
    pub fn apply_snapshot_definitions(&self) {
        let directory = tools("snapshotter").join("crd");
        let files = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        let kinds: Vec<PathBuf> =
            files.filter(|file| file.to_string_lossy().contains("snapshot.storage.k8s.io_")).collect();
        self.apply(&kinds.iter().map(PathBuf::as_path).collect::<Vec<_>>());
        self.kubectl(&[
            "wait",
            "--for=condition=Established",
            "--timeout=60s",
            "crd/volumesnapshots.snapshot.storage.k8s.io",
            "crd/volumesnapshotcontents.snapshot.storage.k8s.io",
            "crd/volumesnapshotclasses.snapshot.storage.k8s.io",
        ]);
    }

    /// Starts the API server again, on the same port with the same data, and waits until it is ready.
    pub fn start_api_server(&self) {
        let mut server = self.server.lock().unwrap();
        assert!(server.is_none(), "the API server runs already");
        let begun = Timestamp::now();
        let process =
            self.place.start("kube-apiserver", &tools("kubernetes").join("kube-apiserver"), &self.flags());
        let kubeconfig = self.kubeconfig();
        let died = || process.ended().is_some();
        let ready = block_on(async { is_ready(&kubeconfig, died).await });
        assert!(ready, "the API server is not ready after {PATIENCE:?}:\n{}", process.log());
        self.starts.lock().unwrap().push([begun, Timestamp::now()]);
        *server = Some(process);
    }

    /// Whether the API server was starting then, and not ready yet.
    pub(super) fn was_starting(&self, at: Timestamp) -> bool {
        self.starts.lock().unwrap().iter().any(|[begun, ready]| (*begun..=*ready).contains(&at))
    }

    /// Ends the API server as a power cut would. Its data stays in etcd.
    pub fn stop_api_server(&self) {
        self.server.lock().unwrap().take().unwrap().kill();
    }

    /// Lets the API server hang (`true`) or go on: connections stay open and nothing is answered.
    pub fn freeze_api_server(&self, is_frozen: bool) {
        let server = self.server.lock().unwrap();
        server.as_ref().unwrap().signal(if is_frozen { "STOP" } else { "CONT" });
    }

    fn flags(&self) -> Vec<String> {
        let file = |name: &str| self.authority.file(name).display().to_string();
        let mut flags = vec![
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            format!("--secure-port={}", self.port),
            format!("--bind-address={}", self.address),
            format!("--tls-cert-file={}", file("server.crt")),
            format!("--tls-private-key-file={}", file("server.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--service-account-key-file={}", file("sa.pub")),
            format!("--service-account-signing-key-file={}", file("sa.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            // Nobody is called that; but the others complain every ten seconds if there is none.
            format!("--requestheader-client-ca-file={}", file("ca.crt")),
            "--requestheader-allowed-names=front-proxy".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            format!("--cert-dir={}", self.directory.join("server").display()),
            "--allow-privileged=true".to_owned(),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            format!("--kubelet-client-certificate={}", file("admin.crt")),
            format!("--kubelet-client-key={}", file("admin.key")),
            "--profiling=false".to_owned(),
            // Pages come from etcd, so that what was compacted is gone.
            "--feature-gates=ListFromCacheSnapshot=false".to_owned(),
        ];
        if let Some(policy) = &self.audit {
            flags.push(format!("--audit-policy-file={}", policy.display()));
            flags.push(format!("--audit-log-path={}", self.directory.join(super::audit::LOG).display()));
        }
        if self.address.is_loopback() {
            // Nobody can be told to come to a loopback address.
            flags.push("--endpoint-reconciler-type=none".to_owned());
        } else {
            flags.push(format!("--advertise-address={}", self.address));
        }
        flags
    }

    /// Makes etcd forget everything but the newest version of each object. A paged list that goes on afterwards is answered with
    /// "410 Gone". Watches are served from the API server's own memory, see [`ApiLab::forget_history`].
    pub fn compact(&self) {
        let endpoint = format!("http://127.0.0.1:{}", self.etcd_port);
        let etcdctl = |arguments: &[&str]| {
            let mut command = self.enter(&installed("etcdctl"));
            command.env("ETCDCTL_API", "3").args(["--endpoints", &endpoint]).args(arguments);
            let output = command.output().unwrap();
            let complaint = String::from_utf8_lossy(&output.stderr);
            let is_done = complaint.contains("required revision has been compacted");
            assert!(output.status.success() || is_done, "etcdctl: {complaint}");
            String::from_utf8(output.stdout).unwrap()
        };
        let status = etcdctl(&["endpoint", "status", "--write-out=json"]);
        let revision = status.split("\"revision\":").nth(1).unwrap();
        let revision: String = revision.chars().take_while(char::is_ascii_digit).collect();
        etcdctl(&["compaction", "--physical", &revision]);
    }

    /// Compacts and starts the API server again, so that a watch from an older version is answered with "410 Gone", too.
    pub fn forget_history(&self) {
        self.stop_api_server();
        self.compact();
        self.start_api_server();
    }

    /// Also starts kube-controller-manager: namespaces and volumes are then deleted for good, claims bound, volumes attached and
    /// service accounts made.
    pub fn controller_manager(&self) {
        let file = |name: &str| self.authority.file(name).display().to_string();
        self.component(
            "kube-controller-manager",
            &[
                "--use-service-account-credentials=true".to_owned(),
                format!("--service-account-private-key-file={}", file("sa.key")),
                format!("--root-ca-file={}", file("ca.crt")),
                format!("--cluster-signing-cert-file={}", file("ca.crt")),
                format!("--cluster-signing-key-file={}", file("ca.key")),
                format!("--cert-dir={}", self.directory.join("controller-manager").display()),
                // Nodes have no provider here, and a lab must see a dead one soon.
                "--node-monitor-grace-period=16s".to_owned(),
                "--node-monitor-period=2s".to_owned(),
                "--attach-detach-reconcile-sync-period=5s".to_owned(),
            ],
        );
        self.wait_for("the service account of the default namespace", PATIENCE, || {
            self.try_kubectl(&["get", "serviceaccount", "default"]).ok()
        });
    }

    /// Also starts kube-scheduler.
    pub fn scheduler(&self) {
        let directory = self.directory.join("scheduler");
        self.component("kube-scheduler", &[format!("--cert-dir={}", directory.display())]);
    }

    fn component(&self, name: &str, more: &[String]) {
        let config = self.kubeconfig().display().to_string();
        let mut flags = vec![
            format!("--kubeconfig={config}"),
            format!("--authentication-kubeconfig={config}"),
            format!("--authorization-kubeconfig={config}"),
            "--leader-elect=false".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", free_port()),
            "--profiling=false".to_owned(),
        ];
        flags.extend_from_slice(more);
        let process = self.place.start(name, &tools("kubernetes").join(name), &flags);
        self.more.lock().unwrap().push(process);
    }

    /// Runs csi-provisioner, csi-resizer, csi-snapshotter or snapshot-controller (which needs no socket) as somebody.
    pub fn sidecar(&self, name: &str, socket: Option<&Path>, whom: Access<'_>, more: &[&str]) -> Process {
        let tool = match name {
            "csi-provisioner" => "provisioner",
            "csi-resizer" => "resizer",
            "csi-snapshotter" | "snapshot-controller" => "snapshotter",
            other => panic!("no tool makes {other}"),
        };
        let mut flags = vec![
            format!("--kubeconfig={}", self.kubeconfig_for(whom).display()),
            "--leader-election=false".to_owned(),
        ];
        flags.extend(socket.map(|socket| format!("--csi-address={}", socket.display())));
        flags.extend(more.iter().map(ToString::to_string));
        // What a pod learns from the downward API.
        let variables = [("NAMESPACE", "kube-system"), ("POD_NAME", name), ("POD_NAMESPACE", "kube-system")];
        self.place.start_with(name, &tools(tool).join(name), &flags, &variables)
    }

    /// Runs any program beside the API server. Its output goes to the log of that name.
    pub fn program(
        &self,
        name: &str,
        program: &Path,
        arguments: &[String],
        variables: &[(&str, &str)],
    ) -> Process {
        self.place.start_with(name, program, arguments, variables)
    }

    /// A port that was free a moment ago.
    pub fn free_port() -> u16 {
        free_port()
    }

    /// The end of a log of this lab, such as that of `kube-apiserver`.
    pub fn log(&self, name: &str) -> String {
        let path = self.place.logs.join(format!("{name}.log"));
        let text = String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        text[text.ceil_char_boundary(text.len().saturating_sub(8000))..].to_owned()
    }

    /// Looks until there is something to see; the parts of the lab must be alive meanwhile.
    pub fn wait_for<T>(&self, what: &str, patience: Duration, mut look: impl FnMut() -> Option<T>) -> T {
        wait_for(what, patience, || {
            for process in &*self.more.lock().unwrap() {
                process.assert_running();
            }
            look()
        })
    }

    /// A command that runs where the lab's processes run.
    pub(super) fn enter(&self, program: &Path) -> Command {
        let mut words = self.place.enter.iter().map(Into::into).chain([program.as_os_str().to_owned()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words);
        command
    }
}

impl Drop for ApiLab {
    fn drop(&mut self) {
        self.more.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
        drop(self.server.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take());
        self.janitor.clean();
    }
}

pub(super) fn certificate_fields(identity: &Identity) -> String {
    format!("client-certificate: {:?}, client-key: {:?}", identity.certificate, identity.key)
}

/// A port that was free a moment ago. Not one of those that the kernel gives to whoever connects: a client that tries to reach a
/// server that is down would sooner or later be given the server's own port, and keep it.
pub(super) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let spread = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_micros());
    let numbers = std::iter::repeat_with(|| NEXT.fetch_add(1, Ordering::Relaxed));
    let mut ports = numbers.take(10_000).map(|next| 20_000 + (spread + next) % 12_000);
    let port = ports.find_map(|port| {
        let port = u16::try_from(port).ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok().map(|_| port)
    });
    port.unwrap_or_else(|| panic!("no port between 20000 and 32000 is free"))
}

fn start_etcd(directory: &Path, place: &Place) -> (Process, u16) {
    let (port, peers) = (free_port(), free_port());
    let peers = format!("http://127.0.0.1:{peers}");
    let etcd = place.start(
        "etcd",
        &installed("etcd"),
        &[
            format!("--data-dir={}", directory.join("etcd").display()),
            format!("--listen-client-urls=http://127.0.0.1:{port}"),
            format!("--advertise-client-urls=http://127.0.0.1:{port}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=default={peers}"),
            "--logger=zap".to_owned(),
            "--log-level=warn".to_owned(),
        ],
    );
    (etcd, port)
}

async fn client(kubeconfig: &Path) -> kube::Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    kube::Client::try_from(config.unwrap()).unwrap()
}

/// Whether the API server said that it is ready, and has made the default namespace, in time.
async fn is_ready(kubeconfig: &Path, died: impl Fn() -> bool) -> bool {
    let client = client(kubeconfig).await;
    let begun = std::time::Instant::now();
    while begun.elapsed() < PATIENCE && !died() {
        let ask = async {
            for path in ["/readyz", "/api/v1/namespaces/default"] {
                let request = Request::get(path).body(vec![]).unwrap();
                if client.request_text(request).await.is_err() {
                    return false;
                }
            }
            true
        };
        if matches!(tokio::time::timeout(Duration::from_secs(2), ask).await, Ok(true)) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    false
}

/// Runs to the end in a runtime of its own, whether the caller is in one or not.
fn block_on<T: Send>(work: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
        });
        thread.join().unwrap()
    })
}
