package images_test

import (
	"fmt"
	"log"

	"slipway/images"
)

// A board is a folder with board.yml. Load also reads the boards that it extends.
func ExampleLoad() {
	board, err := images.Load("virt-arm64")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(board.Board, "extends", board.Extends)
	fmt.Println(board.Arch, board.Machine.Program)
	for _, part := range board.Disk.Partitions {
		if part.Use == "root" || part.Use == "spare" {
			fmt.Println("slot", part.Name)
		}
	}
	// Output:
	// virt-arm64 extends virt
	// arm64 qemu-system-aarch64
	// slot rootA
	// slot rootB
}
