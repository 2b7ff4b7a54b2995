/* A program that is not Python: each rank's number, summed by MPI. */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int rank, world, sum;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d: sum %d\n", rank, world, sum);
    MPI_Finalize();
    return rank == 3 && argc > 1 ? 7 : 0;
}
