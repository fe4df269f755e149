//! What travels, and how often: compression, feedback, ramp, local steps, steps in flight.

use super::{EXTERNAL, JOB, check, check_text, digits, job};
use crate::codec::{CodecSpec, Rounding, Select, ValueFormat};
use crate::config::{exchange_table, reference};
use crate::job::{
    AnchorPull, Compress, CompressRule, Direction, Feedback, Local, Mode, OptimizerSpec, Ramp,
    SMALL_TENSOR_ELEMENTS,
};
use crate::limits::{COMPRESS_RULES_MAX, LOCAL_STEPS_MAX};

const LOCAL: &str = r#"
[local]
steps = 32
[local.inner]
kind = "sgd"
learning_rate = 0.05
"#;

const TOP_K: &str = "
[[compress]]
match = \"*.bias\"
codec = \"bf16\"
[[compress]]
codec = \"top_k\"
density = 0.01
";

/// [`JOB`] in local mode.
fn local_job() -> String {
    JOB.replace("mode = \"bsp\"", "mode = \"local\"") + LOCAL
}

fn local(sets: &[&str]) -> Local {
    let job = job(&local_job(), sets).unwrap_or_else(|errors| panic!("{errors}"));
    job.local.expect("it is in local mode")
}

fn check_local(sets: &[&str], expected: &[&str]) {
    check_text(&local_job(), sets, expected);
}

fn check_top_k(sets: &[&str], expected: &[&str]) {
    check_text(&format!("{JOB}{TOP_K}"), sets, expected);
}

fn rules(text: &str) -> Vec<CompressRule> {
    let job = job(&format!("{JOB}{text}"), &[]).unwrap_or_else(|errors| panic!("{errors}"));
    match job.compress {
        Compress::Rules(rules) => rules,
        other => panic!("{other:?}"),
    }
}

/// One rule for everything.
fn all(codec: CodecSpec, elements_min: u64) -> Compress {
    let rule =
        CompressRule { pattern: "*".to_owned(), direction: Direction::Both, elements_min, codec };
    Compress::Rules(vec![rule])
}

const fn top_k(density: f32) -> CodecSpec {
    CodecSpec::TopK { density, select: Select::Exact, values: ValueFormat::Bf16 }
}

#[test]
fn without_a_word_about_it_nothing_is_compressed_and_one_step_is_under_way() {
    let job = digits(&[]);
    assert_eq!((job.compress, job.feedback), (Compress::Off, Feedback::default()));
    assert_eq!((job.ramp, job.local, job.in_flight), (Ramp::default(), None, 1));
}

#[test]
fn rules_are_read_in_the_order_of_the_file_with_everything_that_is_written() {
    let text = r#"
        [[compress]]
        match = "*.bias"
        codec = "f32"
        [[compress]]
        match = "fc?.*"
        direction = "up"
        codec = "top_k"
        density = 0.02
        select = "threshold"
        values = "two_bit"
        min_elements = 100
        [[compress]]
        direction = "down"
        codec = "int4"
        rounding = "stochastic"
        [[compress]]
        codec = "two_bit"
        threshold = 0.5
        [[compress]]
        codec = "random_k"
        density = 1
        values = "int8"
    "#;
    let rule = |pattern: &str, direction, elements_min, codec| CompressRule {
        pattern: pattern.to_owned(),
        direction,
        elements_min,
        codec,
    };
    let selected =
        CodecSpec::TopK { density: 0.02, select: Select::Threshold, values: ValueFormat::TwoBit };
    let stochastic = CodecSpec::Int4 { rounding: Rounding::Stochastic };
    let random = CodecSpec::RandomK { density: 1.0, values: ValueFormat::Int8 };
    assert_eq!(
        rules(text),
        [
            rule("*.bias", Direction::Both, 0, CodecSpec::F32),
            rule("fc?.*", Direction::Up, 100, selected),
            rule("*", Direction::Down, 4096, stochastic),
            rule("*", Direction::Both, 4096, CodecSpec::TwoBit { threshold: 0.5 }),
            rule("*", Direction::Both, 4096, random),
        ]
    );
}

#[test]
fn a_word_says_how_everything_is_coded() {
    let compress = |word: &str| digits(&[&format!("compress={word}")]).compress;
    assert_eq!(compress("off"), Compress::Off);
    assert_eq!(compress("auto"), Compress::Auto);
    for (word, codec) in
        [("f32", CodecSpec::F32), ("bf16", CodecSpec::Bf16), ("f16", CodecSpec::F16)]
    {
        assert_eq!(compress(word), all(codec, 0));
    }
    let rounding = Rounding::Nearest;
    let random = CodecSpec::RandomK { density: 0.25, values: ValueFormat::Bf16 };
    for (word, codec) in [
        ("int8", CodecSpec::Int8 { rounding }),
        ("int4", CodecSpec::Int4 { rounding }),
        ("sign", CodecSpec::Sign),
        ("two_bit:0.001", CodecSpec::TwoBit { threshold: 0.001 }),
        ("top_k:0.01", top_k(0.01)),
        ("\"top_k: 1\"", top_k(1.0)),
        ("random_k:0.25", random),
    ] {
        assert_eq!(compress(word), all(codec, SMALL_TENSOR_ELEMENTS), "{word}");
    }
    // The same in the file.
    let text = JOB.replace("batch = 16", "batch = 16\ncompress = \"top_k:0.01\"");
    assert_eq!(job(&text, &[]).unwrap().compress, all(top_k(0.01), SMALL_TENSOR_ELEMENTS));
}

const MUST_BE: &str = "must be \"off\", \"auto\" or a codec for every tensor both ways, like \"int8\", \
                       \"two_bit:0.001\" (its threshold), \"top_k:0.01\" or \"random_k:0.01\" (its density)";

#[test]
fn a_word_that_is_no_coding_is_refused() {
    check(
        &["compress=topk:0.01"],
        &[&format!("compress: \"topk:0.01\" is refused: {MUST_BE}; did you mean \"top_k\"?")],
    );
    check(&["compress=\"\""], &[&format!("compress: \"\" is refused: {MUST_BE}")]);
    check(
        &["compress=top_k"],
        &["compress: \"top_k\" is refused: needs its density: write \"top_k:density\""],
    );
    check(
        &["compress=two_bit"],
        &["compress: \"two_bit\" is refused: needs its threshold: write \"two_bit:threshold\""],
    );
    check(
        &["compress=int8:4"],
        &["compress: \"int8:4\" is refused: must be \"int8\" alone: it takes no number"],
    );
    for (number, shown) in [("2", "2.0"), ("0", "0.0"), ("nan", "nan"), ("-1", "-1.0")] {
        check(
            &[&format!("compress=top_k:{number}")],
            &[&format!(
                "compress.density: {shown} is refused: must be a number above 0 and at most 1"
            )],
        );
    }
    check(
        &["compress=random_k:few"],
        &[
            "compress.density: \"few\" is refused: must be a number above 0 and at most 1, not a text",
        ],
    );
    let lines = job(JOB, &["compress=top_k:2"]).unwrap_err().to_string();
    assert!(lines.ends_with("(from --set compress=top_k:2)"), "{lines}");
}

#[test]
fn what_is_neither_a_word_nor_tables_is_refused() {
    let tables = format!("{MUST_BE}, or 1 to 256 tables [[compress]]");
    check(&["compress=8"], &[&format!("compress: 8 is refused: {tables}, not an integer")]);
    check(
        &["compress={codec=\"int8\"}"],
        &[&format!("compress: a section is refused: {tables}, not a section")],
    );
    check(&["compress=[]"], &[&format!("compress: {tables}; there are 0")]);
    check(
        &["compress=[{codec=\"int8\"}, \"int8\"]"],
        &["compress.1: \"int8\" is refused: must be a table, not a text"],
    );
    let most = |count: usize| vec!["{codec=\"sign\"}"; count].join(",");
    let most = |count| job(JOB, &[&format!("compress=[{}]", most(count))]);
    assert!(most(COMPRESS_RULES_MAX).is_ok());
    let errors = most(COMPRESS_RULES_MAX + 1).unwrap_err().to_string();
    assert!(errors.contains("tables [[compress]]; there are 257"), "{errors}");
}

#[test]
fn all_faults_of_all_rules_come_at_once_with_their_lines() {
    let text = format!(
        "{JOB}[[compress]]\ncodec = \"top_k\"\n[[compress]]\ncodec = \"sign\"\ndensity = 0.1\nmatch = 3\n\
         [[compress]]\ncodec = \"topk\"\nanything = 1\n[[compress]]\nmach = \"*\"\ncodec = \"two_bit\"\n\
         threshold = 0\n"
    );
    let first = JOB.lines().count() + 1;
    let errors = job(&text, &[]).unwrap_err();
    let expected = [
        (0, "compress.0.density: missing: it must be a number above 0 and at most 1"),
        (
            5,
            "compress.1.match: 3 is refused: must be text of 1 to 4096 bytes without control characters, not an integer",
        ),
        (
            4,
            "compress.1.density: unknown key of codec = \"sign\": it belongs to codec = \"top_k\" or \"random_k\"",
        ),
        (
            7,
            "compress.2.codec: \"topk\" is refused: must be \"f32\", \"bf16\", \"f16\", \"int8\", \"int4\", \"sign\", \"two_bit\", \"top_k\" or \"random_k\"; did you mean \"top_k\"?",
        ),
        (12, "compress.3.threshold: 0 is refused: must be a finite number above 0"),
        (10, "compress.3.mach: unknown key; did you mean \"match\"?"),
    ];
    let expected: Vec<_> =
        expected.iter().map(|(line, rule)| format!("j.toml:{}: {rule}", first + line)).collect();
    assert_eq!(errors.to_string().lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_key_that_does_not_belong_to_the_codec_is_refused_by_name() {
    for (codec, key, belongs) in [
        ("f32", "rounding", "\"int8\" or \"int4\""),
        ("bf16", "density", "\"top_k\" or \"random_k\""),
        ("f16", "threshold", "\"two_bit\""),
        ("sign", "values", "\"top_k\" or \"random_k\""),
        ("int8", "select", "\"top_k\""),
        ("int4", "density", "\"top_k\" or \"random_k\""),
    ] {
        check(
            &[&format!("compress=[{{codec=\"{codec}\",{key}=\"x\"}}]")],
            &[&format!(
                "compress.0.{key}: unknown key of codec = \"{codec}\": it belongs to codec = {belongs}"
            )],
        );
    }
    check(
        &["compress=[{codec=\"random_k\",density=1,select=\"exact\"}]"],
        &[
            "compress.0.select: unknown key of codec = \"random_k\": it belongs to codec = \"top_k\"",
        ],
    );
    check(
        &["compress=[{codec=\"two_bit\",threshold=1,rounding=\"nearest\"}]"],
        &[
            "compress.0.rounding: unknown key of codec = \"two_bit\": it belongs to codec = \"int8\" or \
           \"int4\"",
        ],
    );
    check(&["density=0.1"], &["density: unknown key: it belongs into [[compress]]"]);
    check(&["probability=0.1"], &["probability: unknown key: it belongs into [local.anchor]"]);
    check(
        &["compress=[{match=\"*\"}]"],
        &[
            "compress.0.codec: missing: it must be \"f32\", \"bf16\", \"f16\", \"int8\", \"int4\", \"sign\", \
           \"two_bit\", \"top_k\" or \"random_k\"",
        ],
    );
}

#[test]
fn numbers_and_words_of_a_rule_outside_their_range_are_refused() {
    for (key, value, rule) in [
        ("density", "0", "a number above 0 and at most 1"),
        ("density", "1.01", "a number above 0 and at most 1"),
        // Above 0, but not once it is an f32.
        ("density", "1e-60", "a number above 0 and at most 1"),
        ("min_elements", "-1", "an integer in 0..=17179869184"),
        ("select", "\"best\"", "\"exact\" or \"threshold\""),
        (
            "values",
            "\"f64\"",
            "\"f32\", \"bf16\", \"int8\", \"int4\" or \"two_bit\"; did you mean \"f32\"?",
        ),
        ("direction", "\"sideways\"", "\"both\", \"up\" or \"down\""),
    ] {
        let set = format!("compress.1.{key}={value}");
        check_top_k(&[&set], &[&format!("compress.1.{key}: {value} is refused: must be {rule}")]);
    }
    check(
        &["compress=[{codec=\"int8\",rounding=\"down\"}]"],
        &["compress.0.rounding: \"down\" is refused: must be \"nearest\" or \"stochastic\""],
    );
}

#[test]
fn an_override_reaches_into_a_rule_or_replaces_them_all() {
    let text = format!("{JOB}{TOP_K}");
    let compress = |sets: &[&str]| job(&text, sets).unwrap().compress;
    let Compress::Rules(rules) = compress(&["compress.1.density=0.02", "compress.0.match=*.b"])
    else {
        panic!("rules stay rules");
    };
    assert_eq!((rules[0].pattern.as_str(), rules[1].codec), ("*.b", top_k(0.02)));
    assert_eq!(compress(&["compress=auto"]), Compress::Auto);
    assert_eq!(compress(&["compress=off"]), Compress::Off);
    assert_eq!(compress(&["compress="]), Compress::Off);
    let int8 = CodecSpec::Int8 { rounding: Rounding::Nearest };
    assert_eq!(compress(&["compress=int8"]), all(int8, SMALL_TENSOR_ELEMENTS));
    let line = |set: &str| job(&text, &[set]).unwrap_err().to_string();
    assert_eq!(
        line("compress.2.density=1"),
        "j.toml: compress.2.density: compress is a list of 2, from 0 (from --set \
         compress.2.density=1)"
    );
    assert_eq!(
        line("compress.0=int8"),
        "j.toml: compress.0: compress is a list: replace it whole (from --set compress.0=int8)"
    );
    assert_eq!(
        line("compress.1.density=2"),
        "j.toml: compress.1.density: 2 is refused: must be a number above 0 and at most 1 (from --set \
         compress.1.density=2)"
    );
}

#[test]
fn an_overridden_compress_drops_what_only_sparse_codecs_have() {
    let momentum = JOB.replace("kind = \"sgd\"", "kind = \"momentum\"");
    let text = format!(
        "{momentum}{TOP_K}[feedback]\nmomentum_correction = true\ndecay = 0.5\n[ramp]\nsteps = 10\n"
    );
    assert_eq!(job(&text, &[]).unwrap().ramp.steps, 10);
    for (word, ramp_steps, correction) in
        [("off", 0, false), ("int8", 0, false), ("auto", 10, false), ("top_k:0.1", 10, true)]
    {
        let job = job(&text, &[&format!("compress={word}")]).unwrap();
        let got = (job.ramp.steps, job.feedback.momentum_correction, job.feedback.decay);
        assert_eq!(got, (ramp_steps, correction, 0.5), "{word}");
    }
    // What the command line says as well is not dropped, and then refused.
    let errors = job(&text, &["compress=off", "ramp.steps=5"]).unwrap_err();
    assert!(errors.to_string().contains("ramp: contradicts compress"), "{errors}");
}

#[test]
fn clients_of_an_external_model_may_only_compress_upward() {
    let rule = "contradicts model.kind = \"external\", whose clients pull whole values as [wire] says: \
                use [[compress]] with direction = \"up\"";
    for word in ["auto", "int8", "top_k:0.01"] {
        let expected = format!("compress: \"{word}\" is refused: {rule}");
        check_text(EXTERNAL, &[&format!("compress={word}")], &[&expected]);
    }
    let tables = "compress=[{codec=\"int8\"},{codec=\"sign\",direction=\"down\"},\
                  {codec=\"sign\",direction=\"up\"}]";
    check_text(
        EXTERNAL,
        &[tables],
        &[
            &format!("compress.0.direction: {rule}"),
            &format!("compress.1.direction: \"down\" is refused: {rule}"),
        ],
    );
    let up = "compress=[{codec=\"sign\",direction=\"up\"}]";
    assert!(!job(EXTERNAL, &[up]).unwrap().sends_deltas());
    assert_eq!(job(EXTERNAL, &["compress=off"]).unwrap().compress, Compress::Off);
}

#[test]
fn feedback_is_read_and_kept_in_its_ranges() {
    let sets = ["feedback.enabled=false", "feedback.decay=0.5", "feedback.local_clip=2"];
    let expected =
        Feedback { enabled: false, decay: 0.5, momentum_correction: false, local_clip: 2.0 };
    assert_eq!(digits(&sets).feedback, expected);
    check(
        &["feedback.decay=1.1", "feedback.local_clip=-1", "feedback.momentum=true"],
        &[
            "feedback.decay: 1.1 is refused: must be a number at least 0 and at most 1",
            "feedback.local_clip: -1 is refused: must be a finite number at least 0",
            "feedback.momentum: unknown key; known here: enabled, decay, momentum_correction, local_clip",
        ],
    );
}

#[test]
fn momentum_correction_needs_heavy_ball_and_a_selection_upward() {
    let on = "feedback.momentum_correction=true";
    let momentum = "optimizer.kind=momentum";
    let text = format!("{JOB}{TOP_K}");
    assert!(job(&text, &[momentum, on]).unwrap().feedback.momentum_correction);
    let key = "feedback.momentum_correction: true is refused";
    let heavy_ball = format!(
        "{key}: needs optimizer.kind = \"momentum\" with nesterov = false: it is that momentum, moved to \
         the workers"
    );
    let selection = format!(
        "{key}: needs a [[compress]] table with codec = \"top_k\" or \"random_k\" on the way up: it acts \
         before elements are selected"
    );
    check_top_k(&[on], &[&heavy_ball]);
    check_top_k(&[on, momentum, "optimizer.nesterov=true"], &[&heavy_ball]);
    for word in ["off", "auto", "int8"] {
        check_top_k(&[on, momentum, &format!("compress={word}")], &[&selection]);
    }
    check_top_k(&[on, momentum, "compress.1.direction=down"], &[&selection]);
    check(&[on], &[&heavy_ball, &selection]);
    check_top_k(
        &[on, momentum, "feedback.enabled=false"],
        &[&format!(
            "{key}: contradicts feedback.enabled = false: it accumulates what was not sent"
        )],
    );
    // What is refused elsewhere raises no second fault here.
    let errors = job(&text, &[on, "optimizer.kind=adm", "compress.1.density=2"]).unwrap_err();
    assert_eq!(errors.errors().len(), 2, "{errors}");
}

#[test]
fn a_ramp_needs_a_sparse_codec() {
    let text = format!("{JOB}{TOP_K}");
    let sets = ["ramp.begin_step=100", "ramp.steps=400", "ramp.from=0.5"];
    let ramp = Ramp { begin_step: 100, steps: 400, from: 0.5 };
    assert_eq!(job(&text, &sets).unwrap().ramp, ramp);
    assert_eq!(job(JOB, &["compress=auto", "ramp.begin_step=7"]).unwrap().ramp.begin_step, 7);
    let rule = "ramp: contradicts compress, which has no sparse codec: remove it, or use \"top_k\" or \
                \"random_k\"";
    check(&["ramp.steps=5"], &[rule]);
    check(&["ramp.steps=5", "compress=sign"], &[rule]);
    for from in ["0", "1.5"] {
        check_top_k(
            &[&format!("ramp.from={from}")],
            &[&format!("ramp.from: {from} is refused: must be a number above 0 and at most 1")],
        );
    }
}

#[test]
fn local_mode_is_read_with_its_rounds_under_bsp_or_a_bound() {
    let inner = OptimizerSpec::Sgd { learning_rate: 0.05, weight_decay: 0.0 };
    let plain =
        Local { steps: 32, inner, begin_step: 0, fragments: 1, delay: 0, mix: 0.0, anchor: None };
    assert_eq!(local(&[]), plain);
    let whole = job(&local_job(), &[]).unwrap();
    assert_eq!((whole.mode, whole.mode_name()), (Mode::Bsp, "local"));
    let bound = job(&local_job(), &["staleness=2"]).unwrap();
    assert_eq!((bound.mode, bound.mode_name()), (Mode::Ssp { staleness: 2 }, "local"));
    let sets = [
        "local.inner.kind=adamw",
        "local.begin_step=100",
        "local.fragments=4",
        "local.delay=7",
        "local.mix=0.5",
        "local.anchor.probability=0.1",
        "local.anchor.strength=0.05",
    ];
    let learning_rate = 0.05;
    let (beta1, beta2, epsilon, weight_decay) = (0.9, 0.999, 1e-8, 0.01);
    let inner = OptimizerSpec::Adamw { learning_rate, beta1, beta2, epsilon, weight_decay };
    let anchor = Some(AnchorPull { probability: 0.1, strength: 0.05 });
    let expected =
        Local { steps: 32, inner, begin_step: 100, fragments: 4, delay: 7, mix: 0.5, anchor };
    assert_eq!(local(&sets), expected);
}

#[test]
fn local_mode_and_its_section_come_together() {
    check(
        &["mode=local"],
        &[
            "local: missing section [local]: mode = \"local\" needs the steps of a round and the workers' \
           optimizer",
        ],
    );
    check(
        &["local.steps=3"],
        &["local: contradicts mode = \"bsp\": remove it, or use mode = \"local\""],
    );
    check_local(
        &["local.inner=", "local.steps="],
        &[
            &format!("local.steps: missing: it must be an integer in 1..={LOCAL_STEPS_MAX}"),
            "local.inner: missing section [local.inner]: The workers' optimizer; its rate follows \
             [schedule].",
        ],
    );
    check_local(
        &["local.inner.kind=rmsprop"],
        &[
            "local.inner.kind: \"rmsprop\" is refused: must be \"sgd\", \"momentum\", \"adam\" or \"adamw\"",
        ],
    );
    check_local(
        &["local.inner.lerning_rate=1", "local.step=4"],
        &[
            "local.step: unknown key; did you mean \"steps\"?",
            "local.inner.lerning_rate: unknown key; did you mean \"learning_rate\"?",
        ],
    );
    check_local(
        &["local.inner.kind=momentum", "local.inner.momentum=0", "local.inner.nesterov=true"],
        &[
            "local.inner.nesterov: true is refused: contradicts momentum = 0: there is nothing to look \
           ahead along",
        ],
    );
}

#[test]
fn faults_inside_sections_of_sections_have_their_line() {
    let text = local_job().replace("learning_rate = 0.05", "learning_rate = 0");
    let line = text.lines().count();
    let errors = job(&text, &[]).unwrap_err().to_string();
    let expected = "local.inner.learning_rate: 0 is refused: must be a finite number above 0";
    assert_eq!(errors, format!("j.toml:{line}: {expected}"));
}

#[test]
fn numbers_of_local_mode_outside_their_range_are_refused() {
    for (key, value, rule) in [
        ("steps", "0", format!("must be an integer in 1..={LOCAL_STEPS_MAX}")),
        ("steps", "65537", format!("must be an integer in 1..={LOCAL_STEPS_MAX}")),
        ("fragments", "0", "must be an integer in 1..=65535".to_owned()),
        ("fragments", "5", "must divide local.steps, 32".to_owned()),
        ("fragments", "64", "must divide local.steps, 32".to_owned()),
        (
            "delay",
            "32",
            "must be below 32, the local steps from one push to the next: steps / fragments"
                .to_owned(),
        ),
        ("mix", "1", "must be a number at least 0 and below 1".to_owned()),
        ("begin_step", "-1", "must be an integer in 0..=1099511627776".to_owned()),
    ] {
        let set = format!("local.{key}={value}");
        check_local(&[&set], &[&format!("local.{key}: {value} is refused: {rule}")]);
    }
    assert_eq!(local(&["local.delay=31"]).delay, 31);
    check_local(
        &["local.fragments=4", "local.delay=8"],
        &[
            "local.delay: 8 is refused: must be below 8, the local steps from one push to the next: steps \
           / fragments",
        ],
    );
}

#[test]
fn a_pull_that_would_reach_the_anchor_is_refused_with_the_reason() {
    let pull = |probability: &str, strength: &str| {
        [
            format!("local.anchor.probability={probability}"),
            format!("local.anchor.strength={strength}"),
        ]
    };
    let sets = |pair: &[String; 2]| job(&local_job(), &[&pair[0], &pair[1]]);
    assert!(sets(&pull("0.5", "0.49")).is_ok());
    for (probability, strength, share) in [("0.5", "0.5", "1"), ("0.25", "0.5", "2")] {
        let pair = pull(probability, strength);
        check_local(
            &[&pair[0], &pair[1]],
            &[&format!(
                "local.anchor.strength: {strength} is refused: one pull would move the worker all the \
                 way or past the anchor: strength / probability is {share}; it must be below 1"
            )],
        );
    }
    check_local(
        &["local.anchor.probability=0"],
        &[
            "local.anchor.probability: 0 is refused: must be a number above 0 and at most 1",
            "local.anchor.strength: missing: it must be a finite number above 0",
        ],
    );
}

#[test]
fn local_mode_refuses_what_it_would_not_do() {
    let contradicts = "is refused: contradicts mode = \"local\"";
    check_local(
        &["reduce=sum", "in_flight=2"],
        &[
            &format!(
                "reduce: \"sum\" {contradicts}: a round moves the model by the mean of how far the \
                 workers came"
            ),
            &format!(
                "in_flight: 2 {contradicts}: a round is long enough to hide a round trip; local.delay \
                 overlaps the two"
            ),
        ],
    );
    check_local(
        &["optimizer.kind=add"],
        &[&format!(
            "optimizer.kind: \"add\" {contradicts}: what is pushed is a gradient, to be walked against; \
             use \"sgd\""
        )],
    );
    check_local(
        &["optimizer.kind=momentum", "compress=top_k:0.01", "feedback.momentum_correction=true"],
        &[&format!(
            "feedback.momentum_correction: true {contradicts}: the workers' momentum is local.inner's"
        )],
    );
    check_local(
        &["compress=auto"],
        &[&format!(
            "compress: \"auto\" {contradicts}: \"auto\" weighs single steps; name a codec for rounds"
        )],
    );
    check_local(
        &["scale_by_staleness=true"],
        &[&format!("scale_by_staleness: true {contradicts}: only \"asp\" has it")],
    );
    let external = EXTERNAL
        .replace("mode = \"asp\"", "mode = \"local\"")
        .replace("\"add\"", "\"sgd\"")
        .replace("-1", "1");
    check_text(
        &(external + LOCAL),
        &[],
        &[&format!(
            "model.kind: \"external\" {contradicts}: clients of an external model take no local steps"
        )],
    );
    let allowed = ["clip.global_norm=1", "schedule.warmup_steps=10"];
    assert!(job(&local_job(), &allowed).is_ok());
}

#[test]
fn an_overridden_mode_drops_local_mode_and_back() {
    let text = local_job().replace("mode =", "staleness = 2\nmode =");
    let with = |sets: &[&str]| job(&text, sets).unwrap_or_else(|errors| panic!("{errors}"));
    let local_and_mode = |sets: &[&str]| (with(sets).local.is_some(), with(sets).mode);
    assert_eq!(local_and_mode(&[]), (true, Mode::Ssp { staleness: 2 }));
    assert_eq!(local_and_mode(&["mode=bsp"]), (false, Mode::Bsp));
    let asp = Mode::Asp { scale_by_staleness: false };
    assert_eq!(local_and_mode(&["mode=asp"]), (false, asp));
    assert_eq!(local_and_mode(&["mode=ssp"]), (false, Mode::Ssp { staleness: 2 }));
    let walk = ["mode=local", "local.steps=8", "local.inner={kind=\"sgd\",learning_rate=0.1}"];
    let asp =
        JOB.replace("mode = \"bsp\"", "mode = \"asp\"\nscale_by_staleness = true\nin_flight = 4");
    let back = job(&asp, &walk).unwrap();
    assert_eq!((back.mode, back.in_flight), (Mode::Bsp, 1));
    assert_eq!(back.local.map(|local| local.steps), Some(8));
}

#[test]
fn steps_in_flight_are_bounded_by_what_a_shard_keeps_open() {
    assert_eq!(digits(&["in_flight=32", "compress=auto"]).in_flight, 32);
    for count in ["0", "33"] {
        check(
            &[&format!("in_flight={count}")],
            &[&format!("in_flight: {count} is refused: must be an integer in 1..=32")],
        );
    }
}

#[test]
fn the_reference_shows_tables_and_what_a_text_may_be() {
    let reference = reference();
    for row in [
        "### `[[compress]]`",
        "At most 256 of them, or `compress = ` one text in their place: \"off\", \"auto\" or a codec",
        "| `codec` | \"f32\", \"bf16\", \"f16\", \"int8\", \"int4\", \"sign\", \"two_bit\", \"top_k\" or \
         \"random_k\" | required | decides the further keys |",
        "| `codec = \"sign\"`: | | | 1 bit an element",
        "| `density` | a number above 0 and at most 1 | required | ",
        "### `[local.inner]`",
        "### `[local.anchor]`",
        "| `in_flight` | an integer in 1..=32 | `1` | ",
    ] {
        assert!(reference.contains(row), "{row} is not in\n{reference}");
    }
    // The sentences name the number that the rule is.
    let section = &exchange_table::COMPRESS;
    let small = SMALL_TENSOR_ELEMENTS.to_string();
    let min_elements = section.keys.iter().find(|key| key.name == "min_elements").unwrap();
    assert!(section.doc.contains(&small) && min_elements.doc.contains(&small));
}

#[test]
fn a_job_with_everything_survives_the_wire_and_each_part_changes_its_hash() {
    let text = format!("{}{TOP_K}", local_job());
    let sets: [&[&str]; 6] = [
        &[],
        &["compress.1.density=0.02"],
        &["feedback.decay=0.5"],
        &["ramp.steps=9"],
        &["local.steps=16"],
        &["local.inner.learning_rate=0.1"],
    ];
    let hashes: std::collections::BTreeSet<_> = sets
        .iter()
        .map(|sets| {
            let sent = job(&text, sets).unwrap_or_else(|errors| panic!("{errors}"));
            let bytes = crate::wire::message::encode(&sent).unwrap();
            assert_eq!(crate::wire::message::decode::<crate::job::Job>(&bytes).unwrap(), sent);
            sent.hash()
        })
        .collect();
    assert_eq!(hashes.len(), sets.len());
}
