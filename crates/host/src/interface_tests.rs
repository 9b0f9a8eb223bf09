use super::*;

fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).unwrap();
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap();
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn octets(text: &str) -> Vec<u8> {
    match text.parse().unwrap() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn told(family: u8, flags: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
    let about = [family, 24, flags, 0, 2, 0, 0, 0];
    message(RTM_NEWADDR, 2, &[&about[..], &attributes.concat()].concat())
}

fn done() -> Vec<u8> {
    message(NLMSG_DONE, 2, &0_i32.to_ne_bytes())
}

#[test]
fn an_address_is_told_by_its_own_attribute_and_those_that_go_are_left_out() {
    let four = || attribute(IFA_ADDRESS, &octets("10.1.0.5"));
    let six = || attribute(IFA_ADDRESS, &octets("fd00:1::5"));
    let wide = |flags: u32| attribute(IFA_FLAGS, &flags.to_ne_bytes());
    let name = || attribute(3, b"eth0\0");
    for (what, family, flags, attributes, expected) in [
        ("one of IPv4", AF_INET, 0x80, vec![four(), name()], &["10.1.0.5"][..]),
        ("an odd name first", AF_INET, 0x80, vec![name(), four()], &["10.1.0.5"]),
        (
            "a tunnel to another machine",
            AF_INET,
            0x80,
            vec![four(), attribute(IFA_LOCAL, &octets("10.1.0.9"))],
            &["10.1.0.9"],
        ),
        ("the second of a network", AF_INET, 0x81, vec![four()], &["10.1.0.5"]),
        ("one that is deprecated", AF_INET, 0x20, vec![four()], &[]),
        ("one of IPv6", AF_INET6, 0x80, vec![six()], &["fd00:1::5"]),
        ("a temporary one", AF_INET6, 0x01, vec![six()], &[]),
        ("a deprecated one", AF_INET6, 0xa0, vec![six()], &[]),
        ("flags that need more room", AF_INET6, 0, vec![six(), wide(0x101)], &[]),
        ("flags that are told twice", AF_INET6, 0x01, vec![wide(0x80), six()], &["fd00:1::5"]),
        (
            "a nested mark",
            AF_INET,
            0,
            vec![attribute(IFA_LOCAL | 0x8000, &octets("10.1.0.9"))],
            &["10.1.0.9"],
        ),
        ("another family", 17, 0, vec![attribute(IFA_ADDRESS, &[1; 6])], &[]),
        ("another family without an address", 17, 0, vec![], &[]),
    ] {
        let part = parse(&told(family, flags, &attributes)).unwrap();
        let found: Vec<_> = part.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{what}");
        assert!(!part.is_last && !part.is_torn, "{what}");
    }
}

#[test]
fn an_answer_ends_with_its_last_message_and_says_if_it_is_torn() {
    let five = told(AF_INET, 0, &[attribute(IFA_LOCAL, &octets("10.1.0.5"))]);
    let nine = told(AF_INET, 0, &[attribute(IFA_LOCAL, &octets("10.1.0.9"))]);
    let whole = parse(&[five.clone(), message(99, 0, &[1, 2, 3]), nine, done(), five.clone()].concat());
    let whole = whole.unwrap();
    assert_eq!((whole.addresses.len(), whole.is_last, whole.is_torn), (2, true, false));
    let torn = [five, message(NLMSG_DONE, NLM_F_DUMP_INTR, &0_i32.to_ne_bytes())].concat();
    assert!(parse(&torn).unwrap().is_torn);
    assert_eq!(parse(&[]).unwrap(), Part::default());
}

#[test]
fn what_the_kernel_refuses_and_what_is_cut_short_is_an_error() {
    for kind in [NLMSG_ERROR, NLMSG_DONE] {
        let error = parse(&message(kind, 0, &(-1_i32).to_ne_bytes())).unwrap_err().to_string();
        assert!(error.contains("Operation not permitted"), "{error}");
    }
    let good = told(AF_INET, 0, &[attribute(IFA_LOCAL, &octets("10.1.0.5"))]);
    let short = |length: u32| [&length.to_ne_bytes()[..], &good[4..]].concat();
    for (what, bytes) in [
        ("half a header", good[..9].to_vec()),
        ("half a message", good[..good.len() - 4].to_vec()),
        ("a length of nothing", short(0)),
        ("a length that is too long", short(u32::MAX)),
        ("half of what is told", short(20)),
        ("half an attribute", short(26)),
        ("an attribute of no length", told(AF_INET, 0, &[vec![0; 4]])),
        ("an attribute that is too long", told(AF_INET, 0, &[vec![9, 9, 1, 0]])),
        ("an address of another length", told(AF_INET, 0, &[attribute(IFA_LOCAL, &[1; 16])])),
        ("no address", told(AF_INET6, 0, &[])),
        ("flags of one byte", told(AF_INET, 0, &[attribute(IFA_FLAGS, &[1])])),
        ("an end that says nothing", message(NLMSG_DONE, 0, &[])),
        ("an error that is none", message(NLMSG_ERROR, 0, &0_i32.to_ne_bytes())),
        ("an error that cannot be", message(NLMSG_ERROR, 0, &i32::MIN.to_ne_bytes())),
        ("an error without a sign", message(NLMSG_ERROR, 0, &1_i32.to_ne_bytes())),
    ] {
        assert!(matches!(parse(&bytes), Err(InterfaceError::Unreadable)), "{what}");
    }
}

#[test]
fn this_machine_has_its_loopback_address() {
    let found = addresses().unwrap();
    assert!(found.contains(&IpAddr::from([127, 0, 0, 1])), "{found:?}");
    assert!(found.iter().all(|address| !address.is_unspecified()), "{found:?}");
    assert!(!is_up(IpAddr::from([240, 1, 2, 3])), "a reserved address is nobody's");
}
