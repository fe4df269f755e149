//! What a person may write and what is said when it is wrong.

mod exchange;

use super::*;
use crate::ids::Fingerprint;
use crate::job::{
    Clip, DataSource, Evaluate, Job, Length, Mode, OptimizerSpec, Reduce, Schedule, ScheduleShape,
    Wire,
};
use crate::layout::Dtype;
use crate::model::ModelSpec;
use proptest::prelude::*;
use std::path::{Path, PathBuf};

/// The digits without anything that has a default.
const JOB: &str = r#"name = "j"
mode = "bsp"
workers = 4
servers = 2
epochs = 3
batch = 16
[model]
kind = "mlp"
widths = [64, 8, 10]
[data]
format = "csv"
train = "embedded:digits-train"
[optimizer]
kind = "sgd"
learning_rate = 0.1
"#;

const EXTERNAL: &str = r#"name = "j"
mode = "asp"
workers = 4
servers = 2
[model]
kind = "external"
[optimizer]
kind = "add"
learning_rate = -1
"#;

const NODE: &str =
    "[certificates]\nca = \"ca.pem\"\ncertificate = \"/abs/c.pem\"\nkey = \"../k.key\"\n";

fn job(text: &str, sets: &[&str]) -> Result<Job, ConfigErrors> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    parse_job(text, "j.toml", &sets)
}

fn digits(sets: &[&str]) -> Job {
    job(JOB, sets).unwrap_or_else(|errors| panic!("{errors}"))
}

/// The faults of [`JOB`] with `sets`, without file and source, one per line.
fn check(sets: &[&str], expected: &[&str]) {
    check_text(JOB, sets, expected);
}

fn check_text(text: &str, sets: &[&str], expected: &[&str]) {
    let errors = job(text, sets).expect_err("it is wrong");
    let lines: Vec<String> = errors.errors().iter().map(brief).collect();
    assert_eq!(lines, expected);
}

fn brief(error: &ConfigError) -> String {
    let error = ConfigError { line: None, source: String::new(), ..error.clone() };
    error.to_string().trim_start_matches("j.toml: ").to_owned()
}

/// `text` with `line` in place of the line that starts like it, up to the `=`.
fn with(text: &str, line: &str) -> String {
    let key = line.split('=').next().unwrap();
    let swap = |old: &str| if old.starts_with(key) { line.to_owned() } else { old.to_owned() };
    text.lines().map(swap).collect::<Vec<_>>().join("\n")
}

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs")
}

#[test]
fn every_file_in_configs_is_right() {
    let mut jobs = Vec::new();
    for entry in std::fs::read_dir(configs().join("jobs")).unwrap() {
        let path = entry.unwrap().path();
        let job = load_job(&path, &[]).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(Some(job.name.as_str()), path.file_stem().and_then(|stem| stem.to_str()));
        jobs.push(job.name);
    }
    jobs.sort();
    let shipped = [
        "digits",
        "fashion-lenet",
        "fashion-lenet-local",
        "fashion-mlp",
        "fashion-mlp-auto",
        "fashion-mlp-local",
        "fashion-mlp-topk",
        "raw",
        "text-transformer",
    ];
    assert_eq!(jobs, shipped);
    let none = Vec::new;
    let coordinator = CoordinatorConfig::load(&configs().join("coordinator.toml"), none()).unwrap();
    let server = ServerConfig::load(&configs().join("server.toml"), none()).unwrap();
    let worker = WorkerConfig::load(&configs().join("worker.toml"), none()).unwrap();
    assert_eq!(coordinator.listen.to_string(), server.coordinator);
    assert_eq!(server.coordinator, worker.coordinator);
    assert_eq!(worker.certificates.ca, configs().join("../certs/ca.pem"));
}

#[test]
fn commented_keys_in_configs_exist_and_show_the_default() {
    // Uncommenting a line must neither be refused nor, where a default exists, change anything.
    for file in ["coordinator.toml", "server.toml", "worker.toml"] {
        let text = std::fs::read_to_string(configs().join(file)).unwrap();
        let is_key = |line: &str| {
            line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' ') && key.len() > 1)
        };
        let open = |line: &str| match line.strip_prefix("# ") {
            Some(key) if is_key(key) => key.to_owned(),
            _ => line.to_owned(),
        };
        let opened = text.lines().map(open).collect::<Vec<_>>().join("\n");
        assert_ne!(text.trim(), opened.trim(), "{file} shows defaults");
        match file {
            "coordinator.toml" => assert_eq!(
                CoordinatorConfig {
                    link: Link::default(),
                    ..CoordinatorConfig::parse(&opened, file, []).unwrap()
                },
                CoordinatorConfig::parse(&text, file, []).unwrap()
            ),
            "server.toml" => assert_eq!(
                ServerConfig {
                    advertise: None,
                    link: Link::default(),
                    ..ServerConfig::parse(&opened, file, []).unwrap()
                },
                ServerConfig::parse(&text, file, []).unwrap()
            ),
            _ => assert_eq!(
                WorkerConfig {
                    seat: None,
                    name: None,
                    slowdown: None,
                    link: Link::default(),
                    ..WorkerConfig::parse(&opened, file, []).unwrap()
                },
                WorkerConfig::parse(&text, file, []).unwrap()
            ),
        }
    }
}

#[test]
fn a_whole_job_is_read_as_it_is_written() {
    let text = r#"
        name = "all.of-it_1"
        mode = "asp"
        scale_by_staleness = true
        workers = 1024
        servers = 256
        seed = 9
        steps = 1000
        batch = 32
        reduce = "sum"
        [model]
        kind = "lenet"
        input = [3, 32, 32]
        classes = 10
        [data]
        format = "cifar"
        train = ["a.bin", "b.bin"]
        test = "c.bin"
        scale = 0.5
        mean = -1
        deviation = 2
        shuffle = false
        [optimizer]
        kind = "adam"
        learning_rate = 1e-3
        beta2 = 0.99
        [schedule]
        kind = "cosine"
        warmup_steps = 50
        floor = 0.25
        [clip]
        global_norm = 1
        [wire]
        up = "bf16"
        down = "f16"
        [evaluate]
        every_steps = 7
    "#;
    let job = job(text, &[]).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!((job.name.as_str(), job.workers, job.servers), ("all.of-it_1", 1024, 256));
    assert_eq!((job.seed, job.length, job.batch), (9, Length::Steps(1000), 32));
    assert_eq!(job.mode, Mode::Asp { scale_by_staleness: true });
    assert_eq!(job.reduce, Reduce::Sum);
    let input = [3, 32, 32];
    assert_eq!(job.model, ModelSpec::Lenet { input, channels: [20, 50], hidden: 500, classes: 10 });
    let data = job.data.unwrap();
    assert_eq!(data.train, DataSource::Files(vec!["a.bin".into(), "b.bin".into()]));
    assert_eq!(data.test, Some(DataSource::Files(vec!["c.bin".into()])));
    assert_eq!((data.scale, data.mean, data.deviation, data.shuffle), (0.5, -1.0, 2.0, false));
    assert_eq!(
        job.optimizer,
        OptimizerSpec::Adam {
            learning_rate: 1e-3,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.0
        }
    );
    // The cosine takes its length from the job.
    let shape = ScheduleShape::Cosine { total_steps: 1000, floor: 0.25 };
    assert_eq!(job.schedule, Schedule { shape, warmup_steps: 50 });
    assert_eq!(job.clip, Clip { per_tensor: 0.0, global_norm: 1.0 });
    assert_eq!(job.wire, Wire { up: Dtype::Bf16, down: Dtype::F16 });
    assert_eq!(job.evaluate, Evaluate { every_steps: 7 });
}

#[test]
fn what_a_job_leaves_out_is_the_documented_default() {
    let job = digits(&[]);
    assert_eq!((job.seed, job.reduce, job.schedule), (1, Reduce::Mean, Schedule::default()));
    assert_eq!((job.clip, job.wire, job.evaluate), <(Clip, Wire, Evaluate)>::default());
    let data = job.data.unwrap();
    assert_eq!((data.scale, data.mean, data.deviation, data.shuffle), (1.0, 0.0, 1.0, true));
    assert_eq!(data.test, None);
    let optimizer = |kind: &str| digits(&[&format!("optimizer.kind={kind}")]).optimizer;
    let (learning_rate, weight_decay) = (0.1, 0.0);
    assert_eq!(optimizer("sgd"), OptimizerSpec::Sgd { learning_rate, weight_decay });
    assert_eq!(
        optimizer("momentum"),
        OptimizerSpec::Momentum { learning_rate, momentum: 0.9, weight_decay, nesterov: false }
    );
    assert_eq!(
        optimizer("adagrad"),
        OptimizerSpec::Adagrad { learning_rate, epsilon: 1e-10, weight_decay }
    );
    assert_eq!(
        optimizer("rmsprop"),
        OptimizerSpec::Rmsprop { learning_rate, alpha: 0.99, epsilon: 1e-8, weight_decay }
    );
    let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
    assert_eq!(
        optimizer("adam"),
        OptimizerSpec::Adam { learning_rate, beta1, beta2, epsilon, weight_decay }
    );
    assert_eq!(
        optimizer("adamw"),
        OptimizerSpec::Adamw { learning_rate, beta1, beta2, epsilon, weight_decay: 0.01 }
    );
    let step = digits(&["schedule.kind=step", "schedule.every_steps=5"]).schedule.shape;
    assert_eq!(step, ScheduleShape::Step { every_steps: 5, factor: 0.1 });
    let cosine = digits(&["schedule.kind=cosine", "schedule.total_steps=5"]).schedule.shape;
    assert_eq!(cosine, ScheduleShape::Cosine { total_steps: 5, floor: 0.0 });
    let sets = ["model={kind=\"resnet20\",input=[1,8,8],classes=10}"];
    let input = [1, 8, 8];
    assert_eq!(digits(&sets).model, ModelSpec::Resnet20 { input, width: 16, classes: 10 });
}

#[test]
fn what_a_node_leaves_out_is_the_documented_default() {
    let certificates = CertificatePaths {
        ca: "etc/ca.pem".into(),
        certificate: "/abs/c.pem".into(),
        key: "etc/../k.key".into(),
    };
    let log = Log { level: LogLevel::Info, format: LogFormat::Text };
    assert_eq!(
        CoordinatorConfig::parse(NODE, "etc/c.toml", []).unwrap(),
        CoordinatorConfig {
            listen: "127.0.0.1:7700".parse().unwrap(),
            certificates: certificates.clone(),
            run_dir: "runs".into(),
            lease_seconds: 5.0,
            start_timeout_seconds: 60.0,
            after_job: AfterJob::Exit,
            log,
            mtu: 1452,
            link: Link::default(),
        }
    );
    assert_eq!(
        ServerConfig::parse(NODE, "etc/c.toml", []).unwrap(),
        ServerConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            advertise: None,
            coordinator: "127.0.0.1:7700".into(),
            certificates: certificates.clone(),
            shards: 1,
            coordinator_grace_seconds: 30.0,
            log,
            mtu: 1452,
            link: Link::default(),
        }
    );
    assert_eq!(
        WorkerConfig::parse(NODE, "etc/c.toml", []).unwrap(),
        WorkerConfig {
            coordinator: "127.0.0.1:7700".into(),
            certificates,
            seat: None,
            name: None,
            data_dir: ".".into(),
            coordinator_grace_seconds: 30.0,
            server_grace_seconds: 10.0,
            threads: 1,
            slowdown: None,
            log,
            mtu: 1452,
            link: Link::default(),
        }
    );
}

#[test]
fn a_link_is_read_as_it_is_written() {
    let text = format!("{NODE}[link]\ncongestion = \"cubic\"\negress_mbit = 20\n");
    let link = Link { congestion: Congestion::Cubic, egress_megabits: Some(20.0) };
    assert_eq!(WorkerConfig::parse(&text, "w.toml", []).unwrap().link, link);
    assert_eq!(ServerConfig::parse(&text, "s.toml", []).unwrap().link, link);
    assert_eq!(CoordinatorConfig::parse(&text, "c.toml", []).unwrap().link, link);
    assert_eq!(Link::default(), Link { congestion: Congestion::Rate, egress_megabits: None });
    for wrong in ["congestion = \"reno\"", "egress_mbit = 0", "egress_mbit = 1e7"] {
        let text = format!("{NODE}[link]\n{wrong}\n");
        let fault = WorkerConfig::parse(&text, "w.toml", []).unwrap_err().to_string();
        assert!(fault.contains("link."), "{fault}");
    }
}

#[test]
fn every_default_of_every_table_is_accepted_by_its_own_rule() {
    // A section read from nothing uses all its defaults; a bad one would be a fault of its own.
    let files =
        [&job_table::JOB, &node_table::COORDINATOR, &node_table::SERVER, &node_table::WORKER];
    for section in files.into_iter().flat_map(all_sections) {
        let selector = section.selector;
        let kinds = section.kinds.iter().map(|kind| format!("{selector} = \"{}\"", kind.name));
        for kind in kinds.chain((section.kinds.is_empty()).then(String::new)) {
            let head = if section.name.is_empty() { String::new() } else { section.heading() };
            let text = format!("{head}\n{kind}\n");
            let mut document = reader::Document::parse(&text, "f", Vec::new()).unwrap();
            if section.repeats.is_some() {
                document.repeated(section);
            } else {
                document.section(section);
            }
            let faults = document.finish(()).err();
            let faults = faults.iter().flat_map(ConfigErrors::errors);
            let bad: Vec<_> = faults.filter(|fault| !fault.rule.starts_with("missing")).collect();
            assert!(bad.is_empty(), "{text}: {bad:?}");
        }
    }
}

/// The section and all below it.
fn all_sections(section: &'static table::Section) -> Vec<&'static table::Section> {
    let below = section.sections.iter().flat_map(|below| all_sections(below));
    std::iter::once(section).chain(below).collect()
}

#[test]
fn all_faults_of_a_file_come_at_once_with_file_line_key_value_and_rule() {
    let text = JOB
        .replace("workers = 4", "workers = 0")
        .replace("servers = 2", "servers = \"two\"")
        .replace("epochs = 3", "epoch = 3")
        .replace("learning_rate = 0.1", "learning_rate = -0.5\nmomentum = 0.9")
        .replace("format = \"csv\"", "format = \"cvs\"");
    let expected = "\
j.toml:3: workers: 0 is refused: must be an integer in 1..=1024
j.toml:4: servers: \"two\" is refused: must be an integer in 1..=256, not a text
j.toml:5: epoch: unknown key; did you mean \"epochs\"?
j.toml:11: data.format: \"cvs\" is refused: must be \"idx\", \"cifar\", \"csv\", \"libsvm\", \"npz\" or \"text\"; did you mean \"csv\"?
j.toml:15: optimizer.learning_rate: -0.5 is refused: must be a finite number above 0
j.toml:16: optimizer.momentum: unknown key of kind = \"sgd\": it belongs to kind = \"momentum\"
j.toml: epochs: missing: write epochs or steps";
    let errors = job(&text, &[]).unwrap_err();
    assert_eq!(errors.to_string(), expected);
    assert_eq!(errors.blame().exit_code(), 64);
}

#[test]
fn an_empty_job_names_everything_it_needs() {
    check_text(
        "",
        &[],
        &[
            "name: missing: it must be 1 to 64 letters, digits, \"-\", \"_\" and \".\", starting with \
             a letter or digit and without \"..\" (it names a folder)",
            "mode: missing: it must be \"bsp\", \"ssp\", \"asp\" or \"local\"",
            "workers: missing: it must be an integer in 1..=1024",
            "servers: missing: it must be an integer in 1..=256",
            "model: missing section [model]: What is trained.",
            "optimizer: missing section [optimizer]: The servers' optimizer; in local mode the outer \
             one. Defaults are PyTorch's, momentum apart.",
        ],
    );
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_or_the_right_place() {
    check(&["sed=1"], &["sed: unknown key; did you mean \"seed\"?"]);
    check(&["data.Train=x"], &["data.Train: unknown key; did you mean \"train\"?"]);
    check(&["learning_rate=1"], &["learning_rate: unknown key: it belongs into [optimizer]"]);
    check(&["wire.sideways=1"], &["wire.sideways: unknown key; known here: up, down"]);
    check(
        &["\"a\nb\"=1"],
        &[
            "\"\\\"a\\nb\\\"\": unknown key; known here: name, mode, staleness, scale_by_staleness, workers, servers, seed, epochs, steps, batch, reduce, in_flight, model, data, optimizer, schedule, clip, wire, compress, feedback, ramp, local, evaluate",
        ],
    );
    check(
        &["optimizer.kind=adm", "optimizer.anything=1"],
        &[
            "optimizer.kind: \"adm\" is refused: must be \"add\", \"sgd\", \"momentum\", \"adagrad\", \
           \"rmsprop\", \"adam\" or \"adamw\"; did you mean \"add\"?",
        ],
    );
    check(
        &["optimizer.beta1=0.5"],
        &[
            "optimizer.beta1: unknown key of kind = \"sgd\": it belongs to kind = \"adam\" or \"adamw\"",
        ],
    );
}

#[test]
fn a_wrong_type_says_what_was_seen_and_what_is_expected() {
    check(
        &["workers=4.0"],
        &["workers: 4.0 is refused: must be an integer in 1..=1024, not a number with a fraction"],
    );
    check(
        &["data.shuffle=1"],
        &["data.shuffle: 1 is refused: must be true or false, not an integer"],
    );
    check(&["wire=f32"], &["wire: \"f32\" is refused: must be a section, not a text"]);
    check(
        &["model.widths=64"],
        &[
            "model.widths: 64 is refused: must be a list of 2 to 1024 integers in 1..=1048576, not an \
         integer",
        ],
    );
    check(
        &["model.widths=[64,-1]"],
        &["model.widths: [64, -1] is refused: must be a list of 2 to 1024 integers in 1..=1048576"],
    );
    check(
        &["data.train=[]"],
        &[
            "data.train: [] is refused: must be a text or a list of 1 to 1024 texts, none of them empty",
        ],
    );
    check_text(
        &with(JOB, "mode = 1979-05-27"),
        &[],
        &[
            "mode: 1979-05-27 is refused: must be \"bsp\", \"ssp\", \"asp\" or \"local\", not a date",
        ],
    );
}

#[test]
fn numbers_outside_their_range_are_refused() {
    for (set, rule) in [
        ("workers=1025", "must be an integer in 1..=1024"),
        ("servers=257", "must be an integer in 1..=256"),
        ("batch=0", "must be an integer in 1..=16777216"),
        ("batch=16777217", "must be an integer in 1..=16777216"),
        ("epochs=0", "must be an integer in 1..=16777216"),
        ("seed=-1", "must be an integer in 0..=9223372036854775807"),
        ("optimizer.learning_rate=0", "must be a finite number above 0"),
        ("optimizer.learning_rate=nan", "must be a finite number above 0"),
        ("optimizer.learning_rate=inf", "must be a finite number above 0"),
        // Above 0, but not once it is an f32; finite, but not once it is an f32.
        ("optimizer.learning_rate=1e-60", "must be a finite number above 0"),
        ("optimizer.learning_rate=1e60", "must be a finite number above 0"),
        ("optimizer.weight_decay=-0.1", "must be a finite number at least 0"),
        ("data.scale=0", "must be a finite number other than 0"),
        ("data.deviation=0.0", "must be a finite number above 0"),
        ("clip.global_norm=-1", "must be a finite number at least 0"),
    ] {
        let (key, value) = set.split_once('=').unwrap();
        check(&[set], &[&format!("{key}: {value} is refused: {rule}")]);
    }
    for beta in ["1.0", "-0.1", "1.5", "nan", "0.99999999999"] {
        let line =
            format!("optimizer.beta1: {beta} is refused: must be a number at least 0 and below 1");
        check(&["optimizer.kind=adam", &format!("optimizer.beta1={beta}")], &[&line]);
    }
    check(
        &["mode=ssp", "staleness=1048577"],
        &["staleness: 1048577 is refused: must be an integer in 0..=1048576"],
    );
}

#[test]
fn add_takes_any_finite_rate_but_none_of_the_tools_of_descent() {
    let add = |rate: &str| job(EXTERNAL, &[&format!("optimizer.learning_rate={rate}")]);
    for (rate, learning_rate) in [("-1", -1.0), ("0.5", 0.5), ("1e30", 1e30)] {
        assert_eq!(add(rate).unwrap().optimizer, OptimizerSpec::Add { learning_rate });
    }
    for rate in ["0", "nan", "inf", "1e60", "1e-60"] {
        assert!(add(rate).is_err(), "{rate}");
    }
    let rule = "contradicts optimizer.kind = \"add\", which counts every push in full: remove it";
    check_text(
        EXTERNAL,
        &["clip.per_tensor=1", "schedule.warmup_steps=1"],
        &[&format!("schedule: {rule}"), &format!("clip: {rule}")],
    );
}

#[test]
fn names_that_are_no_folder_are_refused() {
    for name in ["\"\"", "a/b", "..", ".", "a..b", ".hidden", "-rf", "a b", "é", "a\\\\b", "a:b"] {
        let errors = job(JOB, &[&format!("name={name}")]).unwrap_err();
        assert!(errors.errors()[0].rule.contains("names a folder"), "{name}: {errors}");
    }
    let (fits, long) = ("n".repeat(64), "n".repeat(65));
    assert_eq!(digits(&[&format!("name={fits}")]).name, fits);
    assert!(job(JOB, &[&format!("name={long}")]).is_err());
}

#[test]
fn an_overridden_mode_drops_what_the_file_says_for_another() {
    let with = |mode: &str, sets: &[&str]| {
        let text = JOB.replace("mode = \"bsp\"", mode);
        assert_ne!(text, JOB, "the file's mode was not found");
        job(&text, sets).unwrap().mode
    };
    let ssp = "mode = \"ssp\"\nstaleness = 3";
    assert_eq!(with(ssp, &["mode=bsp"]), Mode::Bsp);
    assert_eq!(with(ssp, &["mode=asp"]), Mode::Asp { scale_by_staleness: false });
    assert_eq!(with(ssp, &["staleness=8"]), Mode::Ssp { staleness: 8 });
    let asp = "mode = \"asp\"\nscale_by_staleness = true";
    assert_eq!(with(asp, &["mode=ssp", "staleness=1"]), Mode::Ssp { staleness: 1 });
}

#[test]
fn the_mode_decides_about_staleness() {
    assert_eq!(digits(&[]).mode, Mode::Bsp);
    assert_eq!(digits(&["mode=asp"]).mode, Mode::Asp { scale_by_staleness: false });
    assert_eq!(digits(&["mode=ssp", "staleness=0"]).mode, Mode::Ssp { staleness: 0 });
    check(
        &["mode=ssp"],
        &[
            "staleness: missing: mode = \"ssp\" needs the steps a worker may be ahead of the slowest",
        ],
    );
    check(
        &["staleness=3"],
        &[
            "staleness: 3 is refused: contradicts mode = \"bsp\", which always waits: remove it (or --set \
         staleness=), or use mode = \"ssp\"",
        ],
    );
    check(
        &["mode=asp", "staleness=3"],
        &[
            "staleness: 3 is refused: contradicts mode = \"asp\", which never waits: remove it (or --set \
         staleness=), or use mode = \"ssp\"",
        ],
    );
    check(
        &["scale_by_staleness=true"],
        &["scale_by_staleness: true is refused: contradicts mode = \"bsp\": only \"asp\" has it"],
    );
    check(
        &["mode=bps"],
        &[
            "mode: \"bps\" is refused: must be \"bsp\", \"ssp\", \"asp\" or \"local\"; did you mean \
         \"bsp\"?",
        ],
    );
}

#[test]
fn a_job_has_one_length() {
    check(
        &["steps=5", "epochs=3"],
        &["epochs: 3 is refused: contradicts steps: write one of the two"],
    );
    assert_eq!(digits(&["steps=5"]).length, Length::Steps(5));
    check(&["epochs="], &["epochs: missing: write epochs or steps"]);
    check(&["batch="], &["batch: missing: a job with a model of ours needs samples per step"]);
    assert_eq!(digits(&["epochs=", "steps=5"]).length, Length::Steps(5));
}

#[test]
fn an_external_job_brings_its_own_data_and_end() {
    let external = job(EXTERNAL, &[]).unwrap();
    assert_eq!((external.length, external.batch), (Length::Steps(u64::MAX), 1));
    assert_eq!((external.model, external.data), (ModelSpec::External, None));
    assert_eq!(job(EXTERNAL, &["steps=7"]).unwrap().length, Length::Steps(7));
    check_text(
        EXTERNAL,
        &["epochs=1", "data.format=csv", "data.train=x", "evaluate.every_steps=1"],
        &[
            "data: contradicts model.kind = \"external\", whose clients bring their own: remove it",
            "evaluate.every_steps: 1 is refused: contradicts data without a test part: add data.test or \
         remove it",
            "epochs: 1 is refused: contradicts model.kind = \"external\", which has no data to pass over: \
         use steps",
        ],
    );
}

#[test]
fn data_must_fit_the_model() {
    let transformer = "model={kind=\"transformer\",context=8,width=8,heads=2,layers=1}";
    check(
        &[transformer],
        &[
            "data.format: \"csv\" is refused: contradicts model.kind = \"transformer\", which reads \
         \"text\" only",
        ],
    );
    check(
        &["data.format=text", "data.train=x.txt"],
        &[
            "data.format: \"text\" is refused: contradicts model.kind: \"text\" trains a \"transformer\" \
         only",
        ],
    );
    check(
        &[transformer, "data.format=text", "data.train=x.txt", "data.scale=2"],
        &[
            "data.scale: 2 is refused: contradicts format = \"text\", whose inputs are bytes: remove it",
        ],
    );
    check(&["data="], &["data: missing section [data]: this model needs something to train on"]);
    check(&["model.widths=[63,10]"], &["model: reads 63 inputs, but the built-in digits have 64"]);
    check(
        &["model.widths=[64,9]"],
        &["model: tells 9 classes apart, but the built-in digits have 10"],
    );
    check(&["data.format=cifar", "data.train=x"], &["model: reads 64 inputs, but cifar has 3072"]);
    check(
        &["data.format=idx", "data.train=x"],
        &[
            "data.train: \"x\" is refused: idx needs two files, images and labels, in this order; there \
         are 1",
        ],
    );
    check(
        &["data.train=embedded:cats"],
        &[
            "data.train: \"embedded:cats\" is refused: built in are embedded: with \"digits-train\" or \
         \"digits-test\"",
        ],
    );
    check(
        &["data.format=npz"],
        &["data.format: \"npz\" is refused: embedded:digits-train is \"csv\""],
    );
    check(
        &["data.test=[\"embedded:digits-test\",\"x\"]"],
        &[
            "data.test: [\"embedded:digits-test\", \"x\"] is refused: a set that is built in stands \
         alone, not in a list",
        ],
    );
    check(
        &["evaluate.every_steps=5"],
        &[
            "evaluate.every_steps: 5 is refused: contradicts data without a test part: add data.test or \
         remove it",
        ],
    );
}

#[test]
fn a_model_that_cannot_be_built_is_refused() {
    check(
        &["model={kind=\"lenet\",input=[1,8,8],classes=10}"],
        &["model: input is 8x8; two 5x5 convolutions and two poolings need at least 16x16"],
    );
    check(
        &["model={kind=\"mlp\"}"],
        &["model.widths: missing: it must be a list of 2 to 1024 integers in 1..=1048576"],
    );
    check(
        &["model={widths=[64,10]}"],
        &["model.kind: missing: it must be \"softmax\", \"mlp\", \"lenet\", \"resnet20\", \
         \"transformer\" or \"external\""],
    );
}

#[test]
fn rules_between_numbers_are_kept() {
    check(
        &["optimizer={kind=\"momentum\",learning_rate=1,momentum=0,nesterov=true}"],
        &[
            "optimizer.nesterov: true is refused: contradicts momentum = 0: there is nothing to look \
         ahead along",
        ],
    );
    check(
        &["schedule.kind=cosine"],
        &["schedule.total_steps: missing: a cosine needs its length, here or as the job's steps"],
    );
    check(
        &["schedule={kind=\"cosine\",total_steps=9,warmup_steps=9}"],
        &["schedule.warmup_steps: 9 is refused: must be below the 9 steps of the whole cosine"],
    );
}

#[test]
fn overrides_need_no_quotes_and_say_where_they_come_from() {
    let job_42 = digits(&["name=42", "seed = 7", "optimizer.learning_rate=2", "wire.up=bf16"]);
    assert_eq!((job_42.name.as_str(), job_42.seed, job_42.wire.up), ("42", 7, Dtype::Bf16));
    assert_eq!(digits(&["name=\"quoted\""]).name, "quoted");
    assert_eq!(digits(&["seed=1", "seed=2"]).seed, 2, "the last one wins");
    let line = |sets: &[&str]| job(JOB, sets).unwrap_err().to_string();
    assert_eq!(
        line(&["stalenes=3"]),
        "j.toml: stalenes: unknown key; did you mean \"staleness\"? (from --set stalenes=3)"
    );
    assert_eq!(
        line(&["workers=many"]),
        "j.toml: workers: \"many\" is refused: must be an integer in 1..=1024, not a text (from --set \
         workers=many)"
    );
    assert_eq!(
        line(&["workers"]),
        "j.toml: write --set key=value or --set section.key=value (from --set workers)"
    );
    assert_eq!(
        line(&["mode.x=1"]),
        "j.toml: mode.x: mode is a value, not a section (from --set mode.x=1)"
    );
    assert_eq!(
        line(&["model..kind=1"]),
        "j.toml: model..kind: a path has 1 to 8 names, none of them empty (from --set model..kind=1)"
    );
    // A value with a line break is one value, not two keys.
    assert!(line(&["seed=1\nworkers=2"]).starts_with("j.toml: seed: \"1\\nworkers=2\" is refused"));
    let mut table = toml::Table::new();
    apply_set(&mut table, "mode=bsp").unwrap();
    apply_set(&mut table, "a.b = [1, 2]").unwrap();
    assert_eq!(table, "mode = \"bsp\"\na.b = [1, 2]".parse().unwrap());
    apply_set(&mut table, "a.b=").unwrap();
    assert_eq!(table, "mode = \"bsp\"\n[a]".parse().unwrap());
}

fn environment(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn the_environment_overrides_the_file() {
    let pairs = [
        ("SLACKLINE__COORDINATOR", "c.example:7700"),
        ("SLACKLINE__CERTIFICATES__CA", "/run/ca.pem"),
        ("SLACKLINE__LOG__LEVEL", "debug"),
        ("SLACKLINE__Seat", "3"),
        ("SLACKLINE__NAME", "7"),
        ("SLACKLINE__SLOWDOWN", "2"),
        ("SLACKLINE_OTHER", "not ours"),
        ("PATH", "/bin"),
    ];
    let worker = WorkerConfig::parse(NODE, "w.toml", environment(&pairs)).unwrap();
    assert_eq!((worker.coordinator.as_str(), worker.seat), ("c.example:7700", Some(3)));
    assert_eq!((worker.name.as_deref(), worker.slowdown), (Some("7"), Some(2.0)));
    assert_eq!(worker.certificates.ca, Path::new("/run/ca.pem"));
    assert_eq!(worker.log.level.to_string(), "debug");
    let pairs = [("SLACKLINE__LOG__LEVL", "debug"), ("SLACKLINE__SEAT", "-1")];
    let errors = WorkerConfig::parse(NODE, "w.toml", environment(&pairs)).unwrap_err();
    assert_eq!(
        errors.to_string(),
        "w.toml: seat: -1 is refused: must be an integer in 0..=1023 (from the environment, \
         SLACKLINE__SEAT)\n\
         w.toml: log.levl: unknown key; did you mean \"level\"? (from the environment, \
         SLACKLINE__LOG__LEVL)"
    );
}

#[test]
fn a_node_refuses_what_it_could_not_run_with() {
    fn check<T: std::fmt::Debug>(
        parse: impl Fn(&str) -> Result<T, ConfigErrors>,
        line: &str,
        expected: &str,
    ) {
        let errors = parse(&format!("{line}\n{NODE}")).unwrap_err();
        assert_eq!(errors.to_string(), format!("n.toml:1: {expected}"));
    }
    let coordinator = |text: &str| CoordinatorConfig::parse(text, "n.toml", []);
    let server = |text: &str| ServerConfig::parse(text, "n.toml", []);
    let worker = |text: &str| WorkerConfig::parse(text, "n.toml", []);
    for mtu in [1199, 9001] {
        let expected = format!("mtu: {mtu} is refused: must be an integer in 1200..=9000");
        check(worker, &format!("mtu = {mtu}"), &expected);
    }
    for lease in ["0.4", "600.5", "nan"] {
        let expected = format!(
            "lease_seconds: {lease} is refused: must be a number at least 0.5 and at most 600"
        );
        check(coordinator, &format!("lease_seconds = {lease}"), &expected);
    }
    check(
        coordinator,
        "after_job = \"stay\"",
        "after_job: \"stay\" is refused: must be \"exit\" or \"wait\"",
    );
    check(
        coordinator,
        "listen = \"localhost:7700\"",
        "listen: \"localhost:7700\" is refused: must be an address to listen on, ip:port, like \
         \"127.0.0.1:7700\"",
    );
    check(
        server,
        "listen = \"0.0.0.0:7701\"",
        "listen: \"0.0.0.0:7701\" is refused: nobody can connect to \"every address\": say under \
         advertise = \"host:port\" what the workers are told, or listen on one address",
    );
    check(server, "shards = 17", "shards: 17 is refused: must be an integer in 1..=16");
    check(worker, "slowdown = 0.5", "slowdown: 0.5 is refused: must be a finite number at least 1");
    check(worker, "threads = 0", "threads: 0 is refused: must be an integer in 1..=256");
    for address in ["", "host", "host:", ":1", "host:0", "host:65536", "host:+1", "a b:1", "::1:7"]
    {
        let expected = format!(
            "coordinator: {address:?} is refused: must be host:port with a port in 1..=65535, like \
             \"10.0.0.7:7700\""
        );
        check(worker, &format!("coordinator = {address:?}"), &expected);
    }
    let v6 = format!("listen = \"[::]:7701\"\nadvertise = \"[fd00::7]:7701\"\n{NODE}");
    assert_eq!(server(&v6).unwrap().advertise.as_deref(), Some("[fd00::7]:7701"));
    assert_eq!(
        worker("").unwrap_err().to_string(),
        "n.toml: certificates: missing section [certificates]: PEM files that say who this process \
         is; relative paths start at the folder of this file."
    );
}

#[test]
fn a_file_that_cannot_be_read_is_one_clear_line() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, bytes: Option<&[u8]>, expected: &str| {
        let path = folder.path().join(name);
        if let Some(bytes) = bytes {
            std::fs::write(&path, bytes).unwrap();
        }
        for errors in
            [WorkerConfig::load(&path, []).unwrap_err(), load_job(&path, &[]).unwrap_err()]
        {
            let text = errors.to_string();
            assert!(!text.contains('\n'), "{text}");
            let start = format!("{}{expected}", path.display());
            assert!(text.starts_with(&start), "{text}");
        }
    };
    check("none.toml", None, ": cannot be opened: No such file");
    check("", None, ": cannot be read: Is a directory");
    check(
        "latin1.toml",
        Some(b"name = \"\xe9\""),
        ": is not UTF-8 text: byte 8 starts no character",
    );
    check("broken.toml", Some(b"# fine\nname = = 3"), ":2: is not TOML: ");
    check("twice.toml", Some(b"seed = 1\nseed = 2"), ":2: is not TOML: duplicate key");
    let large = vec![b'#'; (1 << 20) + 1];
    check("large.toml", Some(&large), ": is larger than 1048576 bytes");
    assert!(load_job(&folder.path().join("large.toml"), &[]).is_err());
    let text = String::from_utf8(large).unwrap();
    assert!(
        parse_job(&text, "j.toml", &[]).unwrap_err().to_string().starts_with("j.toml: is larger")
    );
}

#[test]
fn a_value_that_is_long_or_has_line_breaks_stays_one_short_line() {
    let name = format!("name = \"{}\"", "x\\n".repeat(5000));
    let errors = job(&with(JOB, &name), &[]).unwrap_err().to_string();
    assert_eq!(errors.lines().count(), 1);
    assert!(errors.len() < 500, "{errors}");
}

#[test]
fn the_same_job_has_the_same_hash_and_another_has_another() {
    assert_eq!(digits(&[]).hash(), digits(&[]).hash());
    let hashes: std::collections::BTreeSet<Fingerprint> =
        ["seed=1", "seed=2", "name=k", "optimizer.learning_rate=0.1000001", "mode=asp"]
            .iter()
            .map(|set| digits(&[set]).hash())
            .collect();
    assert_eq!(hashes.len(), 5);
    // A job without end has a hash too.
    assert_ne!(job(EXTERNAL, &[]).unwrap().hash(), job(EXTERNAL, &["steps=1"]).unwrap().hash());
}

#[test]
fn a_job_survives_the_wire() {
    for text in [JOB, EXTERNAL] {
        let sent = job(text, &[]).unwrap();
        let bytes = crate::wire::message::encode(&sent).unwrap();
        assert_eq!(crate::wire::message::decode::<Job>(&bytes).unwrap(), sent);
    }
}

#[test]
fn the_reference_names_every_key_with_its_default() {
    let reference = reference();
    for row in [
        "| `staleness` | an integer in 0..=1048576 | none | ",
        "| `lease_seconds` | a number at least 0.5 and at most 600 | `5.0` | ",
        "| `kind` | \"constant\", \"step\" or \"cosine\" | `\"constant\"` | ",
        "| `beta2` | a number at least 0 and below 1 | `0.999` | ",
        "### `[certificates]`",
    ] {
        assert!(reference.contains(row), "{row} is not in\n{reference}");
    }
}

/// TOML values of every type, nested a little.
fn any_value() -> impl Strategy<Value = toml::Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(toml::Value::from),
        any::<i64>().prop_map(toml::Value::from),
        any::<f64>().prop_map(toml::Value::from),
        "[a-z:/.0-9]{0,8}|\\PC{0,4}".prop_map(toml::Value::from),
    ];
    leaf.prop_recursive(2, 16, 4, |inner| {
        let key = "kind|widths|train|codec|match|density|inner|anchor|[a-z]{1,6}|\\PC{0,2}";
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(toml::Value::from),
            prop::collection::btree_map(key, inner, 0..4)
                .prop_map(|map| toml::Value::Table(map.into_iter().collect())),
        ]
    })
}

fn parse_everything(text: &str, overrides: &[String]) {
    let pairs = overrides.iter().map(|raw| (format!("SLACKLINE__{raw}"), raw.clone()));
    let pairs: Vec<_> = pairs.collect();
    let lines = [
        parse_job(text, "f", overrides).err(),
        CoordinatorConfig::parse(text, "f", pairs.clone()).err(),
        ServerConfig::parse(text, "f", pairs.clone()).err(),
        WorkerConfig::parse(text, "f", pairs).err(),
    ];
    for errors in lines.into_iter().flatten() {
        let text = errors.to_string();
        assert_eq!(text.lines().count(), errors.errors().len(), "{text}");
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC*|[a-z=\\[\\]\"{}.,\n0-9# -]{0,200}", set in "\\PC{0,20}") {
        parse_everything(&text, &[set]);
    }

    #[test]
    fn no_table_panics(
        keys in prop::collection::btree_map(
            "name|mode|workers|steps|epochs|batch|staleness|model|data|optimizer|schedule|clip|wire\
             |compress|feedback|ramp|local|in_flight|evaluate|listen|mtu|seat|certificates|log|\\PC{1,3}",
            any_value(), 0..12,
        ),
    ) {
        let table: toml::Table = keys.into_iter().collect();
        let text = toml::to_string(&table).unwrap();
        parse_everything(&text, &[]);
        // The same through overrides, which may nest where the file cannot.
        let sets: Vec<String> =
            table.iter().map(|(key, value)| format!("{key}={value}")).collect();
        parse_everything(JOB, &sets);
    }
}
