//! A reader of TensorBoard's event files, from their documentation alone: it shares nothing with the
//! program that writes them.

/// One event.
#[derive(Debug, Default)]
pub(super) struct Event {
    pub(super) step: u64,
    pub(super) version: Option<String>,
    pub(super) scalars: Vec<(String, f32)>,
}

/// Every event of a file.
///
/// # Panics
/// At the first thing that is not as TensorBoard wants it.
pub(super) fn read(mut bytes: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while !bytes.is_empty() {
        let head: [u8; 8] = take(&mut bytes, 8).try_into().unwrap();
        let sum: [u8; 4] = take(&mut bytes, 4).try_into().unwrap();
        assert_eq!(u32::from_le_bytes(sum), masked(&head), "checksum of a length");
        let data = take(&mut bytes, usize::try_from(u64::from_le_bytes(head)).unwrap());
        let sum: [u8; 4] = take(&mut bytes, 4).try_into().unwrap();
        assert_eq!(u32::from_le_bytes(sum), masked(data), "checksum of an event");
        events.push(event(data));
    }
    events
}

fn event(data: &[u8]) -> Event {
    let mut event = Event::default();
    for (field, value) in fields(data) {
        match (field, value) {
            (1, Field::Eight(seconds)) => assert!(f64::from_le_bytes(seconds) > 1.6e9),
            (2, Field::Number(step)) => event.step = step,
            (3, Field::Bytes(text)) => event.version = Some(String::from_utf8(text).unwrap()),
            (5, Field::Bytes(summary)) => {
                event.scalars.extend(fields(&summary).into_iter().map(|(field, value)| {
                    let Field::Bytes(value) = value else { panic!("{field}: {value:?}") };
                    scalar(&value)
                }));
            }
            other => panic!("unknown field {other:?}"),
        }
    }
    event
}

fn scalar(data: &[u8]) -> (String, f32) {
    let (mut tag, mut number) = (None, None);
    for field in fields(data) {
        match field {
            (1, Field::Bytes(text)) => tag = Some(String::from_utf8(text).unwrap()),
            (2, Field::Four(bytes)) => number = Some(f32::from_le_bytes(bytes)),
            other => panic!("unknown field {other:?}"),
        }
    }
    (tag.unwrap(), number.unwrap())
}

#[derive(Debug)]
enum Field {
    Number(u64),
    Eight([u8; 8]),
    Four([u8; 4]),
    Bytes(Vec<u8>),
}

/// The fields of a protobuf message with their numbers.
fn fields(mut data: &[u8]) -> Vec<(u64, Field)> {
    let mut found = Vec::new();
    while !data.is_empty() {
        let key = number(&mut data);
        let value = match key & 7 {
            0 => Field::Number(number(&mut data)),
            1 => Field::Eight(take(&mut data, 8).try_into().unwrap()),
            2 => {
                let length = usize::try_from(number(&mut data)).unwrap();
                Field::Bytes(take(&mut data, length).to_vec())
            }
            5 => Field::Four(take(&mut data, 4).try_into().unwrap()),
            other => panic!("wire type {other}"),
        };
        found.push((key >> 3, value));
    }
    found
}

fn number(data: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = take(data, 1)[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

fn take<'a>(data: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (head, rest) = data.split_at(count);
    *data = rest;
    head
}

/// CRC-32C, bit by bit, masked as the record format wants it.
fn masked(data: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
}
