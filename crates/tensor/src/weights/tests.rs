//! Tests of the readers and writers together, on files made here and by the formats' own Python packages.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::*;

const PYTHON_GGUF: &[u8] = include_bytes!("../../tests/fixtures/python.gguf");
const PYTHON_SAFETENSORS: &[u8] = include_bytes!("../../tests/fixtures/python.safetensors");

fn name() -> &'static Path {
    Path::new("m")
}

/// A folder that disappears with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("surefoot-weights-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, file: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(file);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn read(tensors: &dyn TensorSource, tensor: &str) -> Vec<f32> {
    let mut out = vec![0.0; tensors.shape(tensor).unwrap().iter().product()];
    tensors.read_f32(tensor, &mut out).unwrap();
    out
}

fn counting(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

/// Builds GGUF files piece by piece, faults included.
#[derive(Clone)]
struct Raw(Vec<u8>);

impl Raw {
    fn new(version: u32, tensors: u64, keys: u64) -> Self {
        Raw(b"GGUF".to_vec()).u32(version).u64(tensors).u64(keys)
    }

    fn u32(mut self, x: u32) -> Self {
        self.0.extend(x.to_le_bytes());
        self
    }

    fn u64(mut self, x: u64) -> Self {
        self.0.extend(x.to_le_bytes());
        self
    }

    fn bytes(mut self, x: &[u8]) -> Self {
        self.0.extend(x);
        self
    }

    fn text(self, x: &str) -> Self {
        self.u64(x.len() as u64).bytes(x.as_bytes())
    }

    fn tensor(self, name: &str, dims: &[u64], encoding: u32, offset: u64) -> Self {
        let mut raw = self.text(name).u32(dims.len() as u32);
        for dim in dims {
            raw = raw.u64(*dim);
        }
        raw.u32(encoding).u64(offset)
    }

    /// Pads to the alignment and appends `n` zero bytes of values.
    fn values(mut self, n: usize) -> Self {
        let to = self.0.len().next_multiple_of(32) + n;
        self.0.resize(to, 0);
        self
    }
}

fn refusal(raw: Raw) -> String {
    Gguf::from_bytes(name(), raw.0).unwrap_err().to_string()
}

#[test]
fn a_gguf_file_of_the_python_package_reads_as_it_was_written() {
    let gguf = Gguf::from_bytes(name(), PYTHON_GGUF.to_vec()).unwrap();
    let meta = gguf.metadata();
    assert_eq!(meta.str("general.architecture").unwrap(), "llama");
    assert_eq!(meta.u32("a.u8").unwrap(), 200);
    assert_eq!(meta.u64("a.u16").unwrap(), 60000);
    assert_eq!(meta.u32("a.u32").unwrap(), 4_000_000_000);
    assert_eq!(meta.u64("a.u64").unwrap(), 1 << 60);
    assert_eq!(meta.f32("a.f32").unwrap(), 1e-5);
    assert!(meta.bool("a.bool").unwrap());
    assert_eq!(meta.str("a.text").unwrap(), "größer ▁");
    assert_eq!(meta.strings("a.texts").unwrap(), ["a", "", "ß"]);
    assert_eq!(meta.i32s("a.i32s").unwrap(), [1, -2, 3]);
    assert_eq!(meta.f32s("a.f32s").unwrap(), [0.5, -0.25]);
    assert_eq!(meta.bools("a.bools").unwrap(), [true, false]);
    for (key, want) in [
        ("a.i8", Value::I8(-100)),
        ("a.i16", Value::I16(-30000)),
        ("a.i32", Value::I32(-2_000_000_000)),
        ("a.i64", Value::I64(-(1 << 60))),
        ("a.f64", Value::F64(0.1)),
        ("a.nested", Value::Array(Array::Array(vec![Array::I32(vec![1, 2]), Array::I32(vec![3])]))),
    ] {
        assert_eq!(meta.need(key).unwrap().value(), &want, "{key}");
    }
    assert_eq!(gguf.names(), ["blocks", "halves", "wide"]);
    assert_eq!(gguf.shape("wide").unwrap(), [3, 4]);
    assert_eq!(read(&gguf, "wide"), counting(12));
    assert_eq!(gguf.stored_as("halves").unwrap(), "F16");
    assert_eq!(read(&gguf, "halves"), counting(6));
    let mut row = [0.0; 4];
    gguf.read_rows_f32("wide", 1..2, &mut row).unwrap();
    assert_eq!(row, [4.0, 5.0, 6.0, 7.0]);
    let blocks = read(&gguf, "blocks");
    let off = blocks.iter().enumerate().map(|(i, b)| (b - (i as f32 - 64.0) / 64.0).abs()).fold(0.0, f32::max);
    assert!(off < 0.005, "Q8_0 is off by {off}");
    assert_eq!(gguf.encoding("blocks").unwrap().name, "Q8_0");
}

#[test]
fn a_wrong_type_names_key_needed_and_got() {
    let gguf = Gguf::from_bytes(name(), PYTHON_GGUF.to_vec()).unwrap();
    let meta = gguf.metadata();
    for (error, want) in [
        (meta.u32("a.text").unwrap_err(), "needed an integer from 0 to 4294967295, got the string `größer ▁`"),
        (meta.u32("a.i8").unwrap_err(), "needed an integer from 0 to 4294967295, got the i8 `-100`"),
        (meta.u32("a.u64").unwrap_err(), "needed an integer from 0 to 4294967295, got the u64 `1152921504606846976`"),
        (meta.str("a.u32").unwrap_err(), "needed a string, got the u32 `4000000000`"),
        (meta.f32("a.f64").unwrap_err(), "needed an f32, got the f64 `0.1`"),
        (meta.bool("a.u8").unwrap_err(), "needed a bool, got the u8 `200`"),
        (meta.strings("a.i32s").unwrap_err(), "needed an array of strings, got an array of 3 i32 values"),
        (meta.f32s("a.nested").unwrap_err(), "needed an array of f32, got an array of 2 arrays"),
        (meta.u32s("a.i32s").unwrap_err(), "needed an array of integers from 0 to 4294967295, got -2 in it"),
    ] {
        let text = error.to_string();
        assert!(text.starts_with("`m`: metadata key `a.") && text.ends_with(want), "{text}");
    }
    assert_eq!(meta.u32("absent").unwrap_err().to_string(), "`m` lacks the metadata key `absent`");
    assert!(meta.find("absent").is_none());
}

#[test]
fn each_fault_of_a_gguf_header_is_one_clear_message() {
    let one = |dims: &[u64], encoding, offset| Raw::new(3, 1, 0).tensor("t", dims, encoding, offset).values(64);
    let key = |kind| Raw::new(3, 0, 1).text("k").u32(kind);
    let mut deep = key(9);
    for _ in 0..9 {
        deep = deep.u32(9).u64(1);
    }
    for (raw, want) in [
        (Raw(Vec::new()), "`m` is cut short or corrupt: the magic at byte 0: needed 4 bytes, got 0"),
        (Raw(b"GGML....".to_vec()), "`m` is not a GGUF file: needed the first bytes `47475546`, got `47474d4c`"),
        (Raw::new(1, 0, 0), "`m` is GGUF version 1: needed 2 or 3, little endian"),
        (Raw::new(3 << 24, 0, 0), "`m` is GGUF version 50331648: needed 2 or 3, little endian"),
        (
            Raw::new(3, 0, 1 << 60),
            "`m` is cut short or corrupt: the 1152921504606846976 metadata entries at byte 24: needed \
             14987979559889010688 bytes, got 0",
        ),
        (
            Raw::new(3, 1 << 60, 0),
            "`m` is cut short or corrupt: the descriptions of 1152921504606846976 tensors at byte 24: needed \
             18446744073709551615 bytes, got 0",
        ),
        (
            key(9).u32(8).u64(1 << 60),
            "`m` is cut short or corrupt: the 1152921504606846976 values of metadata key `k` at byte 49: needed \
             9223372036854775808 bytes, got 0",
        ),
        (
            key(8).u64(u64::MAX),
            "`m` is cut short or corrupt: a string of metadata key `k` at byte 45: needed 18446744073709551615 bytes, got 0",
        ),
        (key(13).u64(0), "`m`: metadata key `k`: needed a kind of value numbered 0 to 12, got kind 13"),
        (key(7).bytes(&[2]), "`m`: metadata key `k`: needed a bool stored as 0 or 1, got 2"),
        (deep, "`m`: metadata key `k`: needed arrays nested at most 8 deep, got arrays nested 9 deep"),
        (key(8).u64(2).bytes(&[0xc3, 0x28]), "`m`: a string of metadata key `k` at byte 45 is not UTF-8"),
        (
            Raw::new(3, 0, 1).u64(2).bytes(&[0xff, 0xfe]).u32(0).bytes(&[0]),
            "`m`: metadata key 0 at byte 32 is not UTF-8",
        ),
        (
            Raw::new(3, 0, 2).text("k").u32(0).bytes(&[1]).text("k").u32(0).bytes(&[1]),
            "`m` has the metadata key `k` twice",
        ),
        (
            Raw::new(3, 0, 1).text("general.alignment").u32(4).u32(48),
            "`m`: metadata key `general.alignment`: needed a power of two, got 48",
        ),
        (
            Raw::new(3, 0, 1).text("general.alignment").u32(4).u32(0),
            "`m`: metadata key `general.alignment`: needed a power of two, got 0",
        ),
        (Raw::new(3, 2, 0).tensor("t", &[4], 0, 0).tensor("t", &[4], 0, 32).values(64), "`m` has the tensor `t` twice"),
        (
            Raw::new(3, 2, 0).tensor("a", &[12], 0, 0).tensor("b", &[4], 0, 32).values(64),
            "`m`: tensors `a` and `b` share bytes",
        ),
        (one(&[], 0, 0), "`m`: tensor `t`: needed 1 to 4 dimensions, got 0"),
        (one(&[1; 5], 0, 0), "`m`: tensor `t`: needed 1 to 4 dimensions, got 5"),
        (
            one(&[4, 0], 0, 0),
            "`m`: tensor `t`: needed dimensions of at least 1 with a product below 2⁶⁴, got a dimension of 0 after [4]",
        ),
        (
            one(&[1 << 40, 1 << 40], 0, 0),
            "`m`: tensor `t`: needed dimensions of at least 1 with a product below 2⁶⁴, got a dimension of 1099511627776 \
             after [1099511627776]",
        ),
        (
            one(&[1 << 62], 0, 0),
            "`m`: tensor `t`: needed a size below 2⁶⁴ bytes, got 4611686018427387904 values as `F32`",
        ),
        (
            one(&[1 << 40], 0, 0),
            "`m` is cut short or corrupt: the values of tensor `t` at byte 64: needed 4398046511104 bytes, got 64",
        ),
        (
            one(&[4], 0, u64::MAX - 31),
            "`m` is cut short or corrupt: the values of tensor `t` at byte 18446744073709551615: needed 16 bytes, got 0",
        ),
        (one(&[4], 0, 8), "`m`: tensor `t`: needed an offset that is a multiple of 32, got 8"),
        (one(&[48], 8, 0), "`m`: tensor `t`: needed rows of a multiple of 32 values for `Q8_0`, got rows of 48"),
        (
            one(&[4], 99, 0),
            "`m`: tensor `t` is stored as `encoding number 99`: needed one of F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, \
             Q4_K, Q5_K, Q6_K",
        ),
    ] {
        assert_eq!(refusal(raw), want);
    }
}

#[test]
fn every_cut_of_a_gguf_file_is_refused() {
    for n in 0..PYTHON_GGUF.len() {
        let cut = Gguf::from_bytes(name(), PYTHON_GGUF[..n].to_vec());
        // The padding behind the last tensor is not missed.
        assert!(cut.is_err() || n >= PYTHON_GGUF.len() - 32, "a file cut at {n} opens");
    }
}

#[test]
fn an_encoding_that_is_not_read_is_refused_by_name_when_asked_for() {
    let raw = Raw::new(2, 2, 0).tensor("odd", &[256], 10, 0).tensor("t", &[2], 0, 96).values(104);
    let gguf = Gguf::from_bytes(name(), raw.0).unwrap();
    assert_eq!(gguf.stored_as("odd").unwrap(), "Q2_K");
    assert_eq!(read(&gguf, "t"), [0.0, 0.0]);
    let error = gguf.read_f32("odd", &mut [0.0; 256]).unwrap_err();
    assert!(
        matches!(&error, WeightsError::Encoding { tensor, got, .. } if tensor == "odd" && got == "Q2_K"),
        "{error}"
    );
}

#[test]
fn asking_for_what_is_not_there_says_what_is() {
    let gguf = Gguf::from_bytes(name(), PYTHON_GGUF.to_vec()).unwrap();
    let safetensors = Safetensors::from_bytes(name(), PYTHON_SAFETENSORS.to_vec()).unwrap();
    for source in [&gguf as &dyn TensorSource, &safetensors] {
        let ask = |tensor, rows, n| source.read_rows_f32(tensor, rows, &mut vec![0.0; n]).unwrap_err().to_string();
        assert_eq!(ask("wide", 2..4, 8), "`m`: tensor `wide`: needed rows within 0..3, got 2..4");
        #[expect(clippy::reversed_empty_ranges, reason = "a caller's mistake to be refused")]
        let reversed = 2..1;
        assert_eq!(ask("wide", reversed, 0), "`m`: tensor `wide`: needed rows within 0..3, got 2..1");
        assert_eq!(ask("wide", 0..2, 7), "`m`: tensor `wide`: needed 8 values, got 7");
        assert_eq!(ask("none", 0..1, 1), "`m` has no tensor `none`");
        assert!(source.has("wide") && !source.has("none"));
    }
}

#[test]
fn the_first_value_that_is_not_finite_is_named_with_its_place() {
    for (bad, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let mut values = counting(12);
        (values[7], values[9]) = (bad, f32::NAN);
        let mut bytes = fs_free_safetensors(&[("w", vec![3, 4], &counting(12))]);
        let start = bytes.len() - 48;
        bytes.splice(start.., values.iter().flat_map(|v| v.to_le_bytes()));
        let source = Safetensors::from_bytes(name(), bytes).unwrap();
        let want = format!("`m`: tensor `w`: value 7 is {shown}: needed a finite number");
        assert_eq!(source.read_f32("w", &mut [0.0; 12]).unwrap_err().to_string(), want);
        assert_eq!(source.read_rows_f32("w", 1..2, &mut [0.0; 4]).unwrap_err().to_string(), want);
        source.read_rows_f32("w", 0..1, &mut [0.0; 4]).unwrap();
        let tensor = || OutTensor::new("w", [3, 4], &values);
        let gguf = write_gguf(name(), &mut Vec::new(), &[], &[(tensor(), Store::F32)]);
        assert_eq!(gguf.unwrap_err().to_string(), want);
        let safetensors = write_safetensors(name(), &mut Vec::new(), [tensor()], &BTreeMap::new());
        assert_eq!(safetensors.unwrap_err().to_string(), want);
    }
}

fn fs_free_safetensors(tensors: &[(&str, Vec<usize>, &[f32])]) -> Vec<u8> {
    let mut out = Vec::new();
    let tensors = tensors.iter().map(|(name, shape, values)| OutTensor::new(*name, shape.clone(), values));
    write_safetensors(name(), &mut out, tensors, &BTreeMap::new()).unwrap();
    out
}

#[test]
fn a_safetensors_file_of_the_python_package_reads_as_it_was_written() {
    let file = Safetensors::from_bytes(name(), PYTHON_SAFETENSORS.to_vec()).unwrap();
    assert_eq!(file.names(), ["halves", "ids", "scalar", "wide"]);
    assert_eq!(file.metadata()["format"], "np");
    assert_eq!(read(&file, "wide"), counting(12));
    assert_eq!(read(&file, "halves"), counting(6));
    assert_eq!(file.shape("scalar").unwrap(), [0usize; 0]);
    assert_eq!(read(&file, "scalar"), [2.5]);
    let error = file.read_f32("ids", &mut [0.0; 4]).unwrap_err().to_string();
    assert_eq!(error, "`m`: tensor `ids` is stored as `I64`: needed one of F32, F16, BF16");
}

#[test]
fn both_formats_give_the_same_shape_and_bits_for_the_same_tensor() {
    let values: Vec<f32> = (0..96).map(|i| (i as f32 - 40.0) * 0.125).collect();
    let tensor = || OutTensor::new("w", [3, 32], &values);
    let folder = Folder::new("both");
    let mut gguf = Vec::new();
    write_gguf(name(), &mut gguf, &[], &[(tensor(), Store::F32)]).unwrap();
    let paths = [
        folder.write("a.gguf", &gguf),
        folder.write("a.safetensors", &fs_free_safetensors(&[("w", vec![3, 32], &values)])),
    ];
    for path in paths {
        let weights = Weights::open(&path).unwrap();
        assert_eq!(weights.tensors().shape("w").unwrap(), [3, 32]);
        assert_eq!(read(weights.tensors(), "w"), values);
        assert_eq!(weights.tensors().path(), path);
    }
}

#[test]
fn what_is_written_as_safetensors_reads_back_bit_for_bit_in_any_order_given() {
    let (a, b) = (vec![-0.0, 1e-45, f32::MAX], counting(70_000));
    let metadata = BTreeMap::from([("z", "1"), ("format", "pt"), ("a", "ü")]);
    let metadata: BTreeMap<String, String> = metadata.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let mut out = [Vec::new(), Vec::new()];
    let tensors = || {
        vec![
            OutTensor::new("b", [7, 10_000], &b),
            OutTensor::made("a", [3, 1], || a.clone().into()),
            OutTensor::new("none", [0, 9], &[]),
            OutTensor::new("one", [], &b[5..6]),
        ]
    };
    write_safetensors(name(), &mut out[0], tensors(), &metadata).unwrap();
    write_safetensors(name(), &mut out[1], tensors().into_iter().rev(), &metadata).unwrap();
    assert_eq!(out[0], out[1]);
    let file = Safetensors::from_bytes(name(), out[0].clone()).unwrap();
    let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&read(&file, "a")), bits(&a));
    assert_eq!(read(&file, "b"), b);
    assert!(read(&file, "none").is_empty());
    assert_eq!(read(&file, "one"), [5.0]);
    assert_eq!(file.shape("b").unwrap(), [7, 10_000]);
    assert_eq!(file.metadata(), metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect());
}

#[test]
fn each_fault_of_a_safetensors_file_is_one_clear_message() {
    let file = |header: &str, n: usize| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + n, 0);
        bytes
    };
    let tensor =
        |dims: &str, from: u64, to: u64| format!(r#"{{"dtype":"F32","shape":{dims},"data_offsets":[{from},{to}]}}"#);
    let agree = "`m`: needed tensors whose shapes, types and offsets agree and follow each other without a gap, got ";
    for (bytes, want) in [
        (vec![1, 2], "`m` is cut short or corrupt: the header's length at byte 0: needed 8 bytes, got 2".to_owned()),
        (
            99u64.to_le_bytes().to_vec(),
            "`m` is cut short or corrupt: the header at byte 8: needed 99 bytes, got 0".to_owned(),
        ),
        (
            (1u64 << 60).to_le_bytes().to_vec(),
            "`m`: needed a header of at most 100 MB, got 1152921504606846976 bytes".to_owned(),
        ),
        (
            file("\u{7f}", 0),
            "`m`: needed a JSON header that describes tensors, got expected value at line 1 column 1".into(),
        ),
        (
            file(&format!(r#"{{"a":{}}}"#, tensor("[2]", 0, 8)), 4),
            "`m` is cut short or corrupt: the tensors' values at byte 62: needed 8 bytes, got 4".into(),
        ),
        (
            file(&format!(r#"{{"a":{}}}"#, tensor("[2]", 0, 8)), 9),
            "`m`: needed the last tensor to end where the file does, got 9 bytes for 8 of values".into(),
        ),
        (
            file(&format!(r#"{{"a":{t},"\u0061":{t}}}"#, t = tensor("[2]", 0, 8)), 8),
            "`m` has the tensor `a` twice".into(),
        ),
        (
            file(&format!(r#"{{"a":{},"b":{}}}"#, tensor("[2]", 0, 8), tensor("[2]", 4, 12)), 12),
            format!("{agree}an offset that does not"),
        ),
        (
            file(&format!(r#"{{"a":{}}}"#, tensor("[3]", 0, 8)), 8),
            format!("{agree}invalid shape, data type, or offset for tensor"),
        ),
        (
            file(&format!(r#"{{"a":{}}}"#, tensor("[4294967296,4294967296]", 0, 8)), 8),
            format!("{agree}overflow computing buffer size from shape and/or element type"),
        ),
    ] {
        assert_eq!(Safetensors::from_bytes(name(), bytes).unwrap_err().to_string(), want);
    }
    let mut bytes = file("{}", 0);
    bytes[8] = 0xff;
    let error = Safetensors::from_bytes(name(), bytes).unwrap_err().to_string();
    assert_eq!(error, "`m`: the header at byte 8 is not UTF-8");
}

#[test]
fn shards_read_as_one_model_by_their_index() {
    let folder = Folder::new("shards");
    fs::create_dir(folder.0.join("sub")).unwrap();
    folder.write("x-1.safetensors", &fs_free_safetensors(&[("a", vec![2], &[1.0, 2.0]), ("b", vec![1], &[9.0])]));
    folder.write("sub/x-2.safetensors", &fs_free_safetensors(&[("b", vec![1], &[3.0])]));
    let index = r#"{"metadata":{"total_size":12},"weight_map":{"b":"sub/x-2.safetensors","a":"x-1.safetensors"}}"#;
    folder.write("model.safetensors.index.json", index.as_bytes());
    let weights = Weights::open(&folder.0).unwrap();
    assert_eq!(weights.tensors().names(), ["a", "b"]);
    assert_eq!(read(weights.tensors(), "a"), [1.0, 2.0]);
    assert_eq!(read(weights.tensors(), "b"), [3.0]);
    // A whole model beside an index is what loaders take first.
    folder.write("model.safetensors", &fs_free_safetensors(&[("c", vec![1], &[4.0])]));
    assert_eq!(Weights::open(&folder.0).unwrap().tensors().names(), ["c"]);
}

#[test]
fn an_index_cannot_lead_out_of_its_folder_or_to_what_is_not_there() {
    let folder = Folder::new("escape");
    let inner = folder.0.join("model");
    fs::create_dir(&inner).unwrap();
    let secret = folder.write("secret.safetensors", &fs_free_safetensors(&[("a", vec![1], &[1.0])]));
    let shards =
        ["../secret.safetensors", "x/../../secret.safetensors", secret.to_str().unwrap(), "", ".", "a\\b", "C:a"];
    for shard in shards {
        let index = serde_json::json!({ "weight_map": { "a": shard } }).to_string();
        fs::write(inner.join("model.safetensors.index.json"), index).unwrap();
        let error = Weights::open(&inner).unwrap_err();
        assert!(matches!(&error, WeightsError::Shard { shard: s, .. } if s == shard), "{error}");
    }
    for (index, want) in [
        (r#"{"weight_map":{"a":"none.safetensors"}}"#, "cannot open"),
        (r#"{"weight_map":{"a":3}}"#, "needed file names in `weight_map`, got `3` for `a`"),
        (r#"{"weight_map":{}}"#, "needed tensors in `weight_map`, got none"),
        (r#"{"weight_map":[]}"#, "needed an object `weight_map`, got none"),
        ("{", "needed an index in JSON, got EOF"),
    ] {
        fs::write(inner.join("model.safetensors.index.json"), index).unwrap();
        let text = Weights::open(&inner).unwrap_err().to_string();
        assert!(text.contains(want), "{text}");
    }
    fs::write(inner.join("x"), fs_free_safetensors(&[("b", vec![1], &[1.0])])).unwrap();
    fs::write(inner.join("model.safetensors.index.json"), r#"{"weight_map":{"a":"x"}}"#).unwrap();
    let error = Weights::open(&inner).unwrap_err();
    assert!(matches!(&error, WeightsError::MissingTensor { tensor, .. } if tensor == "a"), "{error}");
}

#[test]
fn a_path_without_weights_is_told_what_was_needed() {
    let folder = Folder::new("none");
    let text = folder.write("notes.txt", b"hello, this is text");
    let empty = folder.write("empty.gguf", b"");
    for path in [&folder.0, &text] {
        assert!(matches!(Weights::open(path), Err(WeightsError::Unrecognised { .. })));
    }
    assert!(matches!(Weights::open(&empty), Err(WeightsError::Truncated { .. })));
    assert!(matches!(Weights::open(&folder.0.join("absent")), Err(WeightsError::Io { action: "open", .. })));
    assert!(matches!(Gguf::open(&folder.0), Err(WeightsError::Io { action: "map", .. })));
}

#[test]
fn what_is_written_as_gguf_reads_back_as_written() {
    let values: Vec<f32> = (0..192).map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0).collect();
    let large: Vec<f32> = (0..70_000 * 2).map(|i| (i % 1000) as f32).collect();
    let metadata = vec![
        ("general.architecture".to_owned(), Value::Text("llama".into())),
        ("general.alignment".to_owned(), Value::U32(64)),
        ("x.u8".to_owned(), Value::U8(1)),
        ("x.f32".to_owned(), Value::F32(-0.5)),
        ("x.bool".to_owned(), Value::Bool(false)),
        ("x.texts".to_owned(), Value::Array(Array::Text(vec!["ä".into(), String::new()]))),
        ("x.none".to_owned(), Value::Array(Array::F32(Vec::new()))),
        ("x.deep".to_owned(), Value::Array(Array::Array(vec![Array::U64(vec![7]), Array::Bool(vec![true])]))),
    ];
    let stores = [("f32", Store::F32), ("f16", Store::F16), ("bf16", Store::Bf16), ("q8", Store::Q8_0)];
    let tensors = || {
        let mut all: Vec<_> = stores.iter().map(|(n, s)| (OutTensor::new(*n, [2, 3, 32], &values), *s)).collect();
        all.push((OutTensor::new("large", [70_000, 2], &large), Store::F16));
        all.push((OutTensor::new("vector", [5], &values[..5]), Store::F32));
        all
    };
    let mut out = [Vec::new(), Vec::new()];
    for out in &mut out {
        write_gguf(name(), out, &metadata, &tensors()).unwrap();
    }
    assert_eq!(out[0], out[1]);
    let gguf = Gguf::from_bytes(name(), out[0].clone()).unwrap();
    assert_eq!(gguf.metadata().iter().count(), metadata.len());
    for (key, value) in &metadata {
        assert_eq!(gguf.metadata().need(key).unwrap().value(), value);
    }
    for (tensor, store) in stores {
        assert_eq!(gguf.shape(tensor).unwrap(), [2, 3, 32]);
        assert_eq!(gguf.stored_as(tensor).unwrap(), store.encoding().name);
        let got = read(&gguf, tensor);
        for (i, (got, want)) in got.iter().zip(&values).enumerate() {
            let near = match store {
                Store::F32 => *want,
                Store::F16 => half::f16::from_f32(*want).to_f32(),
                Store::Bf16 => half::bf16::from_f32(*want).to_f32(),
                // Half a step of the block's scale, and the scale itself is rounded to eleven bits.
                Store::Q8_0 if (got - want).abs() < 7.2 / 127.0 * 0.51 + 7.2 / 2048.0 => *got,
                Store::Q8_0 => *want,
            };
            assert_eq!(*got, near, "{tensor} {i}");
        }
    }
    assert_eq!(read(&gguf, "large"), large);
    assert_eq!(read(&gguf, "vector"), values[..5]);
}

#[test]
fn what_a_format_cannot_hold_is_refused_in_writing() {
    let values = counting(32);
    let long = "x".repeat(64);
    let wide = vec![3e38; 32];
    let write = |tensor: OutTensor<'_>, store| {
        write_gguf(name(), &mut Vec::new(), &[], &[(tensor, store)]).unwrap_err().to_string()
    };
    for (tensor, store, want) in [
        (OutTensor::new("w", [31], &values), Store::F32, "`m`: tensor `w`: needed 31 values, got 32"),
        (OutTensor::new("w", [], &values), Store::F32, "`m`: tensor `w`: needed 1 to 4 dimensions, got 0"),
        (
            OutTensor::new("w", [0], &values),
            Store::F32,
            "`m`: tensor `w`: needed dimensions of at least 1, got one of 0",
        ),
        (
            OutTensor::new("w", [2, 16], &values),
            Store::Q8_0,
            "`m`: tensor `w`: needed rows of a multiple of 32 values for `Q8_0`, got rows of 16",
        ),
        (
            OutTensor::new("w", [32], &wide),
            Store::F16,
            "`m`: tensor `w`: value 0 is 300000000000000000000000000000000000000: too large for `F16`",
        ),
        (
            OutTensor::new("w", [32], &wide),
            Store::Q8_0,
            "`m`: tensor `w`: value 31 is 300000000000000000000000000000000000000: too large for `Q8_0`",
        ),
    ] {
        assert_eq!(write(tensor, store), want);
    }
    let text = write(OutTensor::new(long.as_str(), [32], &values), Store::F32);
    assert!(text.ends_with("needed a name of at most 63 bytes, got 64"), "{text}");
    let twice = || OutTensor::new("w", [32], &values);
    let gguf = write_gguf(name(), &mut Vec::new(), &[], &[(twice(), Store::F32), (twice(), Store::F16)]);
    assert_eq!(gguf.unwrap_err().to_string(), "`m` has the tensor `w` twice");
    let safetensors = write_safetensors(name(), &mut Vec::new(), [twice(), twice()], &BTreeMap::new());
    assert_eq!(safetensors.unwrap_err().to_string(), "`m` has the tensor `w` twice");
    let key = || ("k".to_owned(), Value::U8(0));
    let keys = write_gguf(name(), &mut Vec::new(), &[key(), key()], &[]);
    assert_eq!(keys.unwrap_err().to_string(), "`m` has the metadata key `k` twice");
    let reserved = OutTensor::new("__metadata__", [32], &values);
    assert!(write_safetensors(name(), &mut Vec::new(), [reserved], &BTreeMap::new()).is_err());
}

/// A disk that fills up after so many bytes.
struct Full(usize);

impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = bytes.len().min(self.0);
        self.0 -= n;
        if n == 0 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(n) }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_reported_wherever_it_fills_up() {
    let values = counting(32);
    let tensor = || OutTensor::new("w", [32], &values);
    for room in [0, 7, 80, 150] {
        for result in [
            write_gguf(name(), &mut Full(room), &[], &[(tensor(), Store::F32)]),
            write_safetensors(name(), &mut Full(room), [tensor()], &BTreeMap::new()),
        ] {
            assert!(matches!(result, Err(WeightsError::Io { action: "write", .. })), "room for {room} bytes");
        }
    }
}
