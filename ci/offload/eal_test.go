package offload

import (
	"strings"
	"testing"
)

func TestSharedCPU(t *testing.T) {
	for _, tt := range []struct {
		name, eal, want string
	}{
		{"nothing is said", "--vdev=ml_sw0 --no-huge", ""},
		{"a CPU each", "--lcores=0@0,1@1,2@2", ""},
		{"the rig's", "--lcores=0@0,1@0,2@1 --no-huge", "lcores 0 and 1 share CPU 0"},
		{"the last two", "--no-huge --lcores 0@0,1@1,2@1", "lcores 1 and 2 share CPU 1"},
		{"all on one", "--lcores=(0-2)@0", "lcores 0 and 1 share CPU 0"},
		{"all on one, with no CPU named", "--lcores=(0,6)", "lcores 0 and 6 share CPU 0"},
		{"a range of lcores", "--lcores=0-3", ""},
		{"a range on one CPU", "--lcores=0-2@3", "lcores 0 and 1 share CPU 3"},
		{"sets that overlap", "--lcores=0@(0-1),1@(1,2)", "lcores 0 and 1 share CPU 1"},
		{"sets that do not", "--lcores=0@(0-1),1@(2,3)", ""},
		{"a CPU and the number of an lcore", "--lcores=0@1,1", "lcores 0 and 1 share CPU 1"},
		{"one lcore named twice", "--lcores=0@1,0@1", ""},
		{"the short option", "-l 0-2", ""},
		{"the short option, mapped", "-l 0@0,1@0", "lcores 0 and 1 share CPU 0"},
		{"the short option, in one word", "-l0@0,1@0", "lcores 0 and 1 share CPU 0"},
		{"no value", "--no-huge --lcores", ""},
		{"no map", "--lcores=two@one,0-99999999999@0,(", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := sharedCPU(strings.Fields(tt.eal)); got != tt.want {
				t.Errorf("sharedCPU(%s) = %q; want %q", tt.eal, got, tt.want)
			}
		})
	}
}

func FuzzSharedCPU(f *testing.F) {
	f.Add("0@0,1@0,2@1")
	f.Add("(0-2)@(1,3-4),7")
	f.Add("0-4095@0-4095,")
	f.Fuzz(func(t *testing.T, text string) {
		if got := sharedCPU([]string{"--lcores=" + text}); got != "" && !strings.Contains(text, got[strings.LastIndexByte(got, ' ')+1:]) && !strings.Contains(text, "-") {
			t.Errorf("sharedCPU(%q) = %q", text, got)
		}
	})
}
