package update

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The outputs are those of NVIDIA's documentation of L4T R35 and R36, not of a Jetson.
const jetsonSays = `== slots
Current version: 36.4.3
Capsule update status: 0
Current bootloader slot: A
Active bootloader slot: A
num_slots: 2
slot: 0,             status: normal
slot: 1,             status: normal
== classes
bf0d4599-20d4-414e-b2c5-3595b1cda402 2359299 0
== variables
RootfsStatusSlotA   0   0   0   0
RootfsStatusSlotB   0   0   0   0
`

func TestParseJetson(t *testing.T) {
	for _, tt := range []struct {
		name     string
		old, new string // what is changed in jetsonSays
		want     string // state of A, of B, the slot that runs, the next one
		wantErr  bool
	}{
		{name: "as it comes", want: "good good A A"},
		{name: "R32, without a version", old: "Current version: 36.4.3\n", want: "good good A A"},
		{name: "B runs", old: "Current bootloader slot: A\nActive bootloader slot: A", new: "Current bootloader slot: B\nActive bootloader slot: B", want: "good good B B"},
		{name: "B is next", old: "Active bootloader slot: A", new: "Active bootloader slot: B", want: "good good A B"},
		{name: "with retries", old: "slot: 1,             status: normal", new: "slot: 1,             retry_count: 0,             status: unbootable", want: "good bad A A"},
		{name: "rolled back", old: "RootfsStatusSlotB   0", new: "RootfsStatusSlotB   255", want: "good bad A A"},
		{name: "a capsule waits", old: "== variables\n", new: "== variables\nOsIndications   4   0   0   0   0   0   0   0\n", want: "good good A B"},
		{name: "another indication", old: "== variables\n", new: "== variables\nOsIndications   1   0   0   0   0   0   0   0\n", want: "good good A A"},
		{name: "the firmware was told", old: "== variables\n", new: "== variables\nBootChainFwNext   1   0   0   0\n", want: "good good A B"},
		{name: "nonsense in a variable", old: "RootfsStatusSlotB   0", new: "RootfsStatusSlotB   999", want: "good good A A"},
		{name: "one slot", old: "slot: 1,             status: normal\n", want: "good A A"},
		{name: "slots without end", old: "slot: 1,             status: normal\n", new: strings.Repeat("slot: 1,             status: normal\n", 1000), want: "good good A A"},
		{name: "no slot that runs", old: "Current bootloader slot: A", new: "Current bootloader slot: Z", wantErr: true},
		{name: "no slots", old: "slot: 0,             status: normal\nslot: 1,             status: normal\n", wantErr: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.old != "" && !strings.Contains(jetsonSays, tt.old) {
				t.Fatalf("%q is not in the text", tt.old)
			}
			j, err := parseJetson(strings.Replace(jetsonSays, tt.old, tt.new, 1))
			if (err != nil) != tt.wantErr || err != nil {
				if !tt.wantErr || err == nil {
					t.Errorf("parseJetson() = %v; want an error: %v", err, tt.wantErr)
				}
				return
			}
			var got []string
			s := j.toStatus()
			for _, slot := range s.Slots {
				got = append(got, slot.State)
			}
			booted, _ := s.BootedSlot()
			if diff := cmp.Diff(tt.want, strings.Join(append(got, booted.Name, s.Primary), " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCheckCapsule(t *testing.T) {
	const fits = "bf0d4599-20d4-414e-b2c5-3595b1cda402"
	for _, tt := range []struct {
		name     string
		old, new string
		capsule  string
		want     Verdict
		saw      string
	}{
		{name: "no firmware", want: Checked, saw: "firmware 36.4.3, slot A runs; the update brings no firmware"},
		{name: "fits", capsule: fits, want: Checked, saw: "the capsule fits"},
		{name: "another module's", capsule: "00000000-20d4-414e-b2c5-3595b1cda402", want: Refused, saw: "is for firmware 00000000-"},
		{name: "no table of firmware", old: "bf0d4599-20d4-414e-b2c5-3595b1cda402 2359299 0\n", capsule: fits, want: Checked},
		{name: "one that failed", old: "2359299 0", new: "2359299 6", capsule: fits, want: Checked, saw: "ended with status 6"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			j, err := parseJetson(strings.Replace(jetsonSays, tt.old, tt.new, 1))
			if err != nil {
				t.Fatal(err)
			}
			if got := j.checkCapsule(tt.capsule); got.Verdict != tt.want || !strings.Contains(got.Saw, tt.saw) || (got.Next == "") != (tt.want == Checked) {
				t.Errorf("checkCapsule() = %+v; want it %s, and %q", got, tt.want, tt.saw)
			}
		})
	}
}

func FuzzJetson(f *testing.F) {
	f.Add(jetsonSays)
	f.Add("== slots\nslot: 0, status: x\nCurrent bootloader slot: B\n")
	f.Fuzz(func(t *testing.T, text string) {
		j, err := parseJetson(text)
		if err != nil {
			return
		}
		j.toStatus()
		j.checkCapsule("x")
	})
}

// makeCapsule returns the beginning of a capsule, by the UEFI specification.
func makeCapsule(t testing.TB, items string) []byte {
	t.Helper()
	head, err := hex.DecodeString("edd5cb6d2de8444cbda17194199ad92a")
	if err != nil {
		t.Fatal(err)
	}
	head = binary.LittleEndian.AppendUint32(head, 28)      // header
	head = binary.LittleEndian.AppendUint32(head, 0x10000) // flags
	head = binary.LittleEndian.AppendUint32(head, 1<<20)   // all of it
	rest, err := hex.DecodeString(items)
	if err != nil {
		t.Fatal(err)
	}
	return append(head, rest...)
}

// One item after 16 bytes: its version, and the GUID of its firmware.
const anItem = "01000000" + "0000" + "0100" + "1000000000000000" + "02000000" + "99450dbfd4204e41b2c53595b1cda402"

func TestParseCapsule(t *testing.T) {
	whole := makeCapsule(t, anItem)
	for _, tt := range []struct {
		name    string
		head    []byte
		wantErr string
	}{
		{"whole", whole, ""},
		{"empty", nil, "no capsule"},
		{"something else", append([]byte("x"), whole[1:]...), "no capsule"},
		{"cut in its header", whole[:20], "no capsule"},
		{"cut after it", whole[:28], "its header has 28 bytes"},
		{"cut in its item", whole[:len(whole)-1], "first item"},
		{"no items", makeCapsule(t, "01000000"+"0000"+"0000"+"1000000000000000"), "0 items"},
		{"drivers", makeCapsule(t, strings.Replace(anItem, "0000"+"0100", "0100"+"0100", 1)), "1 drivers"},
		{"an item far away", makeCapsule(t, strings.Replace(anItem, "1000000000000000", "ffffffffffffffff", 1)), "first item"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseCapsule(tt.head)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("parseCapsule() = %v; want %q", err, tt.wantErr)
				}
				return
			}
			if err != nil || got != "bf0d4599-20d4-414e-b2c5-3595b1cda402" {
				t.Errorf("parseCapsule() = %q, %v", got, err)
			}
		})
	}
}

func FuzzCapsule(f *testing.F) {
	f.Add(makeCapsule(f, anItem))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, head []byte) {
		if guid, err := parseCapsule(head); err == nil && len(guid) != 36 {
			t.Errorf("its firmware is %q", guid)
		}
	})
}
