//! Data that cannot be trained on: the run ends at once with the file, the place and the rule.

use super::CONFIG;
use tests::run::Plan;

/// Runs a job with two pixels and three classes on `files`; it must end with `parts` in its last line.
fn check(format: &str, model: &str, train: &str, files: &[(&str, &[u8])], parts: &[&str]) {
    let job = format!(
        "name = \"bad\"\nmode = \"ssp\"\nstaleness = 1\nworkers = 2\nservers = 1\nepochs = 1\n\
         batch = 2\n\n[model]\n{model}\n\n[data]\nformat = \"{format}\"\ntrain = {train}\n\n\
         [optimizer]\nkind = \"sgd\"\nlearning_rate = 0.1\n"
    );
    let plan =
        files.iter().fold(Plan::of_text(&job), |plan, (name, bytes)| plan.with_data(name, bytes));
    let run = plan.run();
    let words = run.words();
    assert_eq!(run.output.status.code(), Some(CONFIG), "{words}");
    let line = words.lines().last().unwrap();
    for part in parts {
        assert!(line.contains(part), "{part:?} is not in {line:?}\n{words}");
    }
    assert!(line.contains("worker-") && !words.contains("panicked"), "{words}");
}

const DENSE: &str = "kind = \"softmax\"\ninputs = 4\nclasses = 3";
const IMAGE: &str = "kind = \"resnet20\"\ninput = [3, 32, 32]\nwidth = 2\nclasses = 10";
const IMAGES: &[u8] = &[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8];
const LABELS: &[u8] = &[0, 0, 8, 1, 0, 0, 0, 2, 0, 2];
const PAIR: &str = "[\"images\", \"labels\"]";

#[test]
fn a_data_file_that_is_missing_ends_the_run_with_its_name() {
    check("csv", DENSE, "\"none.csv\"", &[], &["none.csv", "No such file"]);
}

#[test]
fn a_data_file_that_is_cut_short_ends_the_run_with_both_lengths() {
    let files = [("images", &IMAGES[..20]), ("labels", LABELS)];
    check("idx", DENSE, PAIR, &files, &["images should have 24 bytes", "it has 20"]);
    check("cifar", IMAGE, "\"x.bin\"", &[("x.bin", &[7; 3000])], &["x.bin", "3073", "it has 3000"]);
}

#[test]
fn a_data_file_of_another_format_ends_the_run_with_its_first_bytes() {
    let files = [("images", &b"PNG\x01 something"[..]), ("labels", LABELS)];
    check("idx", DENSE, PAIR, &files, &["images starts with 504e4701", "000008"]);
}

#[test]
fn a_label_that_is_no_class_ends_the_run_with_its_row() {
    let rows: &[u8] = b"1,2,3,4,0\n1,2,3,4,7\n";
    let parts = &["row 2 of ", "x.csv has label 7; the model has classes 0 to 2"];
    check("csv", DENSE, "\"x.csv\"", &[("x.csv", rows)], parts);
}

#[test]
fn a_field_that_is_no_number_ends_the_run_with_its_line() {
    let rows: &[u8] = b"1,2,3,4,0\n1,two,3,4,1\n";
    check("csv", DENSE, "\"x.csv\"", &[("x.csv", rows)], &["line 2 of ", "x.csv: \"two\" is not"]);
}
