package plaintext

import "testing"

func TestDidYouMean(t *testing.T) {
	boards := []string{"bluefield2", "bluefield3", "orin-nano", "orin-nano-nvme", "thor", "virt"}
	for name, want := range map[string]string{
		"orin":      ": did you mean orin-nano or orin-nano-nvme?",
		"orin-naon": ": did you mean orin-nano?",
		"viirt":     ": did you mean virt?",
		"blufield3": ": did you mean bluefield3?",
		"vrit":      ": did you mean virt?", // a swap is one
		"raspberry": "",
		"i":         "", // too many
	} {
		if got := DidYouMean(name, boards); got != want {
			t.Errorf("DidYouMean(%q) = %q; want %q", name, got, want)
		}
	}
	for name, known := range map[string][]string{"dump": {"up"}, "lock": {"pack"}, "clean": {"fleet"}, "--c": {"--continue"}, "vrit": {"orin"}} {
		if got := DidYouMean(name, known); got != "" {
			t.Errorf("DidYouMean(%q) = %q; nothing is near", name, got)
		}
	}
}
